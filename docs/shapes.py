"""Have the reference pages show signatures, fields and types as the code writes them: an extension of Griffe.

mkdocs.yml names this file; Griffe reads the code for mkdocstrings. It takes the string of a jaxtyping shape
for a forward reference: `Float[Array, "i *o"]` would become `Float[Array, i * o]`, and `Float[Array, " D"]`
lose its quotes. And it drops the comments of a class's fields, which say what they mean.
"""

import ast

from griffe import Attribute, Class, Extension, Function, Module


class AsWritten(Extension):
    """Annotations as the code has them, and fields of classes and names of types as pieces of code."""

    def on_function_instance(self, *, node: ast.FunctionDef, func: Function, **_) -> None:
        """Write the annotations and defaults of a function as its code does."""
        arguments = [node.args.vararg, *node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for argument in filter(None, arguments):
            func.parameters[argument.arg].annotation = written(argument.annotation)
        for parameter in func.parameters:
            if parameter.default is not None:
                parameter.default = str(parameter.default).replace("'", '"')
        func.returns = written(node.returns)

    def on_attribute_instance(self, *, node: ast.AST, attr: Attribute, **_) -> None:
        """Do the same for a property."""
        if isinstance(node, ast.FunctionDef):
            attr.annotation = written(node.returns)

    def on_class_members(self, *, node: ast.ClassDef, cls: Class, agent, **_) -> None:
        """Show the class from its decorators to its last field, less its docstring."""
        fields = [member for member in node.body if isinstance(member, ast.AnnAssign)]
        if fields:
            first, docstring = min([node, *node.decorator_list], key=lambda n: n.lineno), node.body[0]
            above = part(agent, first.lineno, docstring.lineno - 1)
            show(cls, above + part(agent, docstring.end_lineno + 1, fields[-1].end_lineno).lstrip("\n"))
        forget(cls)
        cls.decorators.clear()  # or else Griffe gives a dataclass an `__init__` with the same fields again

    def on_module_members(self, *, node: ast.Module, mod: Module, agent, **_) -> None:
        """Show the module's names of types, which signatures use: they are in CapWords."""
        show(mod, "".join(part(agent, n.lineno, n.end_lineno) for n in node.body if names_type(n)))
        forget(mod)


def written(annotation: ast.expr | None) -> str | None:
    """Return an annotation as the code writes it, a forward reference without its quotes."""
    if annotation is None:
        return None
    forward = isinstance(annotation, ast.Constant) and isinstance(annotation.value, str)
    return str(annotation.value) if forward else ast.unparse(annotation).replace("'", '"')


def names_type(node: ast.stmt) -> bool:
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    return isinstance(target, ast.Name) and target.id[0].isupper() and not target.id.isupper()


def part(agent, first: int, last: int) -> str:
    """Return those lines of the file that Griffe reads, counted from 1."""
    return "".join(agent.code.splitlines(keepends=True)[first - 1 : last])


def show(described: Class | Module, code: str) -> None:
    """Put a piece of code after a docstring."""
    if code and described.docstring:
        described.docstring.value += f"\n\n```{{ .python .written }}\n{code}```"


def forget(described: Class | Module) -> None:
    """Leave out constants, fields, and functions without a docstring: nobody else calls them."""
    for name, member in list(described.members.items()):
        constant = isinstance(member, Attribute) and "property" not in member.labels
        helper = isinstance(member, Function) and not member.docstring
        if constant or (helper and name not in ("__init__", "__call__")):
            described.del_member(name)
