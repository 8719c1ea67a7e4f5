# SPDX-License-Identifier: Apache-2.0
"""Tables and plots of what the scripts of this directory measured.

    plot.py DIR       reads DIR/{determinism_*,decode,training_*}.jsonl; writes, of what is there,
                      determinism.svg, drift.svg, decode.svg, determinism.md, and determinism.html,
                      which is all of it on one page

drift.svg: how far apart the results are of treatments that change launches. determinism.svg: one
column a subject, one row a treatment. The share of trials in which any byte
differs is the shade; the numbers stand in the cell. decode.svg: tokens that flip, with the 95 %
interval.
"""

import html
import math
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import tenants  # noqa: E402

CELL_W, CELL_H, LEFT, TOP = 92, 24, 290, 150


def shade(share):
    """Green for none, amber to red for some: what differs at all must be seen at once."""
    if share == 0:
        return "#eaf5ec"
    return f"rgb({int(253 - 25 * share)},{int(215 - 135 * share)},{int(130 - 70 * share)})"


def document(width, height, parts):
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="system-ui,sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>', *parts, "</svg>\n"])


def grid(records):
    """Subjects, treatments and the record of each pair."""
    subjects, treatments, cells = [], [], {}
    for record in records:
        if "differing" not in record or "trials" not in record:
            continue
        if record["subject"] not in subjects:
            subjects.append(record["subject"])
        if record["treatment"] not in treatments:
            treatments.append(record["treatment"])
        cells[record["treatment"], record["subject"]] = record
    return subjects, treatments, cells


def suite_svg(records):
    subjects, treatments, cells = grid(records)
    width = LEFT + CELL_W * len(subjects) + 110  # the last heading leans out to the right
    height = TOP + CELL_H * len(treatments) + 20
    out = ['<text x="8" y="20" font-size="15">Trials with any differing byte, of all</text>']
    for column, subject in enumerate(subjects):
        x = LEFT + CELL_W * column + CELL_W / 2
        out.append(f'<text transform="translate({x},{TOP - 8}) rotate(-35)">'
                   f'{html.escape(subject)}</text>')
    for row, treatment in enumerate(treatments):
        y = TOP + CELL_H * row
        out.append(f'<text x="8" y="{y + 16}">{html.escape(treatment)}</text>')
        for column, subject in enumerate(subjects):
            record = cells.get((treatment, subject))
            if record is None:
                continue
            share = record["differing"] / max(record["trials"], 1)
            x = LEFT + CELL_W * column
            out.append(f'<rect x="{x}" y="{y}" width="{CELL_W - 3}" height="{CELL_H - 3}" '
                       f'fill="{shade(share)}"/><text x="{x + CELL_W / 2}" y="{y + 15}" '
                       f'text-anchor="middle">{record["differing"]}/{record["trials"]}</text>')
    return document(width, height, out)


# Of a record that compared bytes within one process: what is measured, and as it is written.
MAGNITUDES = (("most apart", lambda r: r["max_abs"]),
              ("most ulps", lambda r: r["max_ulps"]),
              ("elements, %", lambda r: 100 * r["differing_elements"] / max(r["elements"], 1)))


def drift_svg(records):
    """Rows: kernels; columns: treatments with three magnitudes each, as bars on a logarithmic scale
    of their own, with the number beside."""
    subjects, treatments, cells = grid(records)
    measured = [t for t in treatments if any("max_abs" in cells.get((t, s), {}) for s in subjects)]
    bar, number_w, row_h, left, top = 70, 76, 24, 240, 76
    column = bar + number_w
    width = left + column * len(MAGNITUDES) * len(measured) + 20
    out = ['<text x="8" y="20" font-size="15">How far apart the results are: the program\'s own '
           'launches against changed ones, equal inputs</text>']
    for t, treatment in enumerate(measured):
        for m, (what, value) in enumerate(MAGNITUDES):
            x = left + column * (len(MAGNITUDES) * t + m)
            values = {s: value(cells[treatment, s]) for s in subjects
                      if "max_abs" in cells.get((treatment, s), {})}
            if m == 0:
                out.append(f'<text x="{x}" y="46" font-weight="bold">'
                           f'{html.escape(treatment)}</text>')
            out.append(f'<text x="{x}" y="64" fill="#57606a">{html.escape(what)}</text>')
            some = [v for v in values.values() if v > 0]
            low, high = math.log10(min(some, default=1)), math.log10(max(some, default=1))
            for row, subject in enumerate(subjects):
                if subject not in values:
                    continue
                y, v = top + row_h * row, values[subject]
                # The smallest that is not zero is still seen.
                long = 0 if v == 0 else bar * (
                    0.1 + 0.9 * ((math.log10(v) - low) / (high - low) if high > low else 1))
                out.append(f'<rect x="{x}" y="{y}" width="{long:.1f}" height="{row_h - 6}" '
                           f'fill="{shade(1)}"/><text x="{x + long + 4:.1f}" y="{y + 13}" '
                           f'fill="{"#1a7f37" if v == 0 else "#1f2328"}">{v:.3g}</text>')
    for row, subject in enumerate(subjects):
        out.append(f'<text x="8" y="{top + row_h * row + 13}">{html.escape(subject)}</text>')
    return document(width, top + row_h * len(subjects) + 12, out)


def page(directory, names):
    """The plots on one page that needs no other file."""
    parts = [(directory / name).read_text() for name in names if (directory / name).exists()]
    return ("<!doctype html><html lang=\"en\"><meta charset=\"utf-8\">"
            "<title>Determinism</title>"
            "<style>body{font:15px/1.5 system-ui,sans-serif;margin:2em;color:#1f2328}"
            "figure{margin:0 0 2em;overflow-x:auto}</style>"
            "<h1>Does the allocation change a bit?</h1>"
            "<p>Green: no byte of any trial. Ours moves each launch; reshaping changes it to "
            "follow the free processors; atoms cut it into launches of whole blocks.</p>"
            + "".join(f"<figure>{part}</figure>" for part in parts) + "</html>\n")


def decode_svg(records):
    """One row a treatment: the share of tokens that flip, and its interval."""
    left, wide, row_height = 400, 420, 26
    most = max([r["flip_high"] for r in records] + [1e-6])
    at = lambda share: left + wide * share / most
    out = ['<text x="8" y="20" font-size="15">Tokens that flip, of those with equal tokens before; '
           '95 % interval</text>']
    for row, record in enumerate(records):
        y = 44 + row_height * row
        colour = "#1a7f37" if record["flip"] == 0 else "#c2410c"
        out.append(f'<text x="8" y="{y + 4}">{html.escape(record["treatment"])}</text>'
                   f'<line x1="{at(record["flip_low"]):.1f}" x2="{at(record["flip_high"]):.1f}" '
                   f'y1="{y}" y2="{y}" stroke="{colour}" stroke-width="3"/>'
                   f'<circle cx="{at(record["flip"]):.1f}" cy="{y}" r="5" fill="{colour}"/>'
                   f'<text x="{left + wide + 14}" y="{y + 4}">{100 * record["flip"]:.3f} % '
                   f'[{100 * record["flip_low"]:.3f}, {100 * record["flip_high"]:.3f}]</text>')
    bottom = 44 + row_height * len(records)
    out.append(f'<line x1="{left}" x2="{left + wide}" y1="{bottom}" y2="{bottom}" stroke="#888"/>')
    for i in range(5):
        share = most * i / 4
        out.append(f'<text x="{at(share):.1f}" y="{bottom + 18}" text-anchor="middle">'
                   f'{100 * share:.2g} %</text>')
    return document(left + wide + 200, bottom + 32, out)


def table(headings, rows):
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines) + "\n"


def number(value):
    return "–" if value is None else f"{value:.3g}"


def suite_tables(records):
    subjects, treatments, cells = grid(records)
    count = lambda r: f"{r['differing']}/{r['trials']}" if r else "–"
    yield "Trials with any differing byte, of all\n"
    yield table(["treatment", *subjects],
                [[t, *[count(cells.get((t, s))) for s in subjects]] for t in treatments])
    error = lambda t, s: number(cells.get((t, s), {}).get("error"))
    yield ("Error: the largest distance from the result in double precision, as a share of the "
           "largest element\n")
    yield table(["treatment", *subjects], [[t, *[error(t, s) for s in subjects]]
                                           for t in treatments
                                           if any(error(t, s) != "–" for s in subjects)])
    for treatment in ("reshape", "atoms"):
        rows = [[s, r["knob"], f"{r['turned']}/{r['trials']}", count(r),
                 f"{100 * r['differing_elements'] / max(r['elements'], 1):.3g} %", r["max_ulps"],
                 number(r["max_abs"]), number(r["own_error"]), number(r["error"])]
                for s in subjects for r in [cells.get((treatment, s))] if r]
        if rows:
            yield f"{treatment}\n"
            yield table(["subject", "knob", "trials changed", "differing", "elements", "most ulps",
                         "most apart", "own error", "error"], rows)


def decode_table(records):
    yield "Decoding\n"
    share = lambda r, key: f"{r[key + '_differing']}/{r[key]}"
    yield table(["treatment", "replays that differ", "the first prompt's selections",
                 "selections of replays",
                 "logits and probabilities", "prompts that diverge", "mean tokens before",
                 "flips a token, 95 % interval"],
                [[r["treatment"], share(r, "replays"),
                  f"{r['first_prompt_selections_differing']}/{r['replays']}",
                  share(r, "selections"), share(r, "digests"), share(r, "prompts"),
                  number(r["consistent_span"]),
                  f"{r['flip']:.5f} [{r['flip_low']:.5f}, {r['flip_high']:.5f}]"] for r in records])


def training_table(records):
    yield "Training: hashes of loss, gradients and weights at every step\n"
    yield table(["workload", "treatment", "steps", "hashes", "differing", "first difference"],
                [[r["workload"], r["treatment"], r["steps"], r["hashes"], r["differing"],
                  r["first_difference"] or r["why"] or "–"] for r in records])


def write(directory):
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    read = lambda *names: [r for name in names for r in tenants.read_results(directory, name)]
    # Both parts have the gate; the later one stands.
    suite = read("determinism_ours", "determinism_others")
    decode = [r for r in read("decode") if "flip" in r]
    training = [r for r in read("training_qwen-train", "training_resnet-train")
                if "treatment" in r]
    text = []
    if grid(suite)[0]:
        (directory / "determinism.svg").write_text(suite_svg(suite))
        (directory / "drift.svg").write_text(drift_svg(suite))
        text += suite_tables(suite)
    if decode:
        (directory / "decode.svg").write_text(decode_svg(decode))
        text += decode_table(decode)
    if training:
        text += training_table(training)
    (directory / "determinism.md").write_text("\n".join(text))
    (directory / "determinism.html").write_text(
        page(directory, ["determinism.svg", "drift.svg", "decode.svg"]))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    write(sys.argv[1])
