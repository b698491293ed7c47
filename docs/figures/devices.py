"""Draw the parts of a matrix and of a batch that eight devices hold, on four meshes. For chapter 11.

python -m docs.figures.devices

docs/interactive/devices.html draws the same for any mesh.
"""

import math

from docs.figures import BLUE, GREY, ORANGE
from docs.figures._motion import Movie, box, text

MESHES = (
    {"data": 8, "fsdp": 1, "tensor": 1},
    {"data": 1, "fsdp": 8, "tensor": 1},
    {"data": 2, "fsdp": 1, "tensor": 4},
    {"data": 2, "fsdp": 2, "tensor": 2},
)
LEFT, TOP, CELL, ROW = 14, 36, 80, 84  # before the first device, above the first mesh, of a device, of a mesh
MATRIX, BATCH, HEIGHT = 38, 22, 40  # widths, and the height of both
EMPTY = "#eef0f3"


def main() -> None:
    movie = Movie(LEFT + 8 * CELL + 4, TOP + len(MESHES) * ROW, 1, "The parts that eight devices hold")
    movie.add(box(LEFT, 10, 10, 10, BLUE) + text(LEFT + 15, 19, "a matrix (D, F)", GREY))
    movie.add(box(LEFT + 130, 10, 10, 10, ORANGE) + text(LEFT + 145, 19, "the rows of the batch", GREY))
    for i, mesh in enumerate(MESHES):
        y = TOP + i * ROW
        name = "--mesh=" + ",".join(f"{axis}:{size}" for axis, size in mesh.items() if size > 1)
        movie.add(f'<g font-weight="600">{text(LEFT, y + 12, name)}</g>')
        for device in range(math.prod(mesh.values())):
            rest, tensor = divmod(device, mesh["tensor"])  # the innermost axis
            data, fsdp = divmod(rest, mesh["fsdp"])
            draw_device(movie, LEFT + device * CELL, y + 20, mesh, (data, fsdp, tensor))
    movie.save("devices")


def draw_device(movie: Movie, x: float, y: float, mesh: dict[str, int], place: tuple[int, int, int]) -> None:
    """Draw the parts of the device at a place of the mesh: fsdp cuts a matrix's rows, tensor its columns."""
    data, fsdp, tensor = place
    part_width, part_height = MATRIX / mesh["tensor"], HEIGHT / mesh["fsdp"]
    movie.add(box(x, y, MATRIX, HEIGHT, EMPTY))
    movie.add(box(x + tensor * part_width, y + fsdp * part_height, part_width, part_height, BLUE))
    row, rows = data * mesh["fsdp"] + fsdp, mesh["data"] * mesh["fsdp"]
    movie.add(box(x + MATRIX + 5, y, BATCH, HEIGHT, EMPTY))
    movie.add(box(x + MATRIX + 5, y + row * HEIGHT / rows, BATCH, HEIGHT / rows, ORANGE))


if __name__ == "__main__":
    main()
