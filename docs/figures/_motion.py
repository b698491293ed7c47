"""Draw a picture that moves, as SVG with CSS and without a script.

movie = Movie(640, 200, seconds=8, title="what it shows, for those who cannot see it")
movie.add(box(10, 10, 80, 20, BLUE))                            always there
movie.add(box(10, 10, 80, 20, BLUE), 0.2, 0.5, move=(90, 0))    there from 20 % to 50 % of the time, moving
movie.save("name")                                              docs/images/name.svg

An image on a page takes no clicks, so that no button can stop it. Therefore it first shows its still picture,
plays ROUNDS times, and shows the still picture again. Opened alone, it rests while the pointer is on it; a
page links to it for that. It never moves for readers who ask for reduced motion, or on paper.
"""

from html import escape

from docs.figures import IMAGES

FONT = 'font-family="system-ui, sans-serif"'
WAIT, ROUNDS = 2, 3  # seconds of the still picture at first; how often it plays


class Movie:
    """The elements of a picture, and for each that comes and goes its part of the time."""

    def __init__(self, width: float, height: float, seconds: float, title: str):
        self.width, self.height, self.seconds, self.title = width, height, seconds, title
        self.elements: list[str] = []
        self.rules: list[str] = []

    def add(
        self,
        element: str,
        start: float | None = None,
        end: float = 1.0,
        *,
        move: tuple[float, float] = (0, 0),
        still: float = 1.0,
    ) -> None:
        """Add an element: always there, or from `start` to `end`, shares of the time, moving by `move`.

        `still` is its opacity in the still picture.
        """
        if start is None:
            self.elements.append(element)
            return
        name, edge = f"m{len(self.rules)}", 0.4  # percent: of the time, in which it comes or goes
        first, last = 100 * start, 100 * end
        stops = [
            (max(0.0, first - edge), "opacity: 0"),
            (first, "opacity: 1; transform: translate(0, 0)"),
            (last, f"opacity: 1; transform: translate({move[0]:g}px, {move[1]:g}px)"),
        ]
        if last < 100 - edge:
            after = f"opacity: 0; transform: translate({move[0]:g}px, {move[1]:g}px)"
            stops += [(last + edge, after), (100, after)]
        if first > edge:
            stops.insert(0, (0, "opacity: 0"))
        frames = " ".join(f"{at:.2f}% {{ {style} }}" for at, style in stops)
        self.rules.append(f"@keyframes {name} {{ {frames} }}")
        self.rules[-1] += f" .{name} {{ animation: {name} {self.seconds:g}s linear {WAIT}s {ROUNDS} }}"
        self.elements.append(f'<g class="{name}" opacity="{still:g}">{element}</g>')

    def save(self, name: str) -> None:
        moves = [
            "<style>\n@media screen and (prefers-reduced-motion: no-preference) {",
            *self.rules,
            "svg:hover g { animation-play-state: paused }\n}\n</style>",
        ]
        style = "\n".join(moves) + "\n" if self.rules else ""
        text = f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" \
width="{self.width:g}" height="{self.height:g}" role="img" {FONT} font-size="12">
<title>{escape(self.title)}</title>
{style}<rect width="100%" height="100%" fill="white"/>
{chr(10).join(self.elements)}
</svg>
"""
        (IMAGES / f"{name}.svg").write_text(text)
        print(f"docs/images/{name}.svg")


def box(x: float, y: float, width: float, height: float, fill: str, stroke: str = "none") -> str:
    place = f'x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2"'
    return f'<rect {place} fill="{fill}" stroke="{stroke}"/>'


def text(
    x: float, y: float, words: str, color: str = "#1f2937", size: float = 12, anchor: str = "start"
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{color}" font-size="{size:g}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )
