# SPDX-License-Identifier: Apache-2.0
"""Drift against treatment as an SVG: one column a subject, one row a treatment.

The share of trials in which any byte differs is the shade; the numbers stand in the cell.
"""

import html

CELL_W, CELL_H, LEFT, TOP = 92, 24, 250, 130


def shade(share):
    """White for none, amber to red for some: what differs at all must be seen at once."""
    if share == 0:
        return "#eaf5ec"
    return f"hsl({int(45 - 40 * share)},85%,{int(82 - 22 * share)}%)"


def svg(records):
    subjects, treatments, cells = [], [], {}
    for record in records:
        if "differing" not in record or "trials" not in record:
            continue
        if record["subject"] not in subjects:
            subjects.append(record["subject"])
        if record["treatment"] not in treatments:
            treatments.append(record["treatment"])
        cells[record["treatment"], record["subject"]] = record
    width = LEFT + CELL_W * len(subjects) + 20
    height = TOP + CELL_H * len(treatments) + 40
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
           'font-family="system-ui,sans-serif" font-size="12">',
           f'<text x="8" y="20" font-size="15">Trials with any differing byte, of all</text>']
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
    out.append("</svg>\n")
    return "\n".join(out)


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg(records))
