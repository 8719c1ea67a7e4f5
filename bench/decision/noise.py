# SPDX-License-Identifier: Apache-2.0
"""How noisy blocks are, and how long a switch between arrangements is felt. Pure.

A block's rate of a job is what the estimator sees. What decides is the difference of two arms'
mean log rates, so its variation is computed too: independent blocks of two arms differ by sqrt 2
times the variation of the mean log rate.
"""

import math

import paired

WIDTHS = (0.02, 0.05, 0.1, 0.2)  # seconds
LAGS = (1, 2, 5)


def stretch(lines, begin, end, widths=WIDTHS):
    """Of a long window under one arm: per width the variation and the autocorrelation of each job's
    rate and of the mean log rate. lines: a Timeline of each job that runs."""
    found = []
    for width in widths:
        series = [line.speeds(begin, end, width) for line in lines]
        count = min(map(len, series))
        series = [s[:count] for s in series]
        # A block in which a job got on by nothing has no logarithm: it counts as a hundredth.
        floor = [0.01 * (paired.mean(s) or 1) for s in series]
        logs = [paired.mean(math.log(max(s[i], f)) for s, f in zip(series, floor))
                for i in range(count)]
        found.append({
            "width_s": width, "blocks": count,
            "rate": [paired.mean(s) for s in series],
            "variation": [paired.variation(s) for s in series],
            "log_sd": _deviation(logs),
            "autocorrelation": [[paired.autocorrelation(s, lag) for lag in LAGS] for s in series],
            "log_autocorrelation": [paired.autocorrelation(logs, lag) for lag in LAGS]})
    return found


def _deviation(values):
    if len(values) < 2:
        return None
    m = paired.mean(values)
    return math.sqrt(sum((v - m) ** 2 for v in values) / (len(values) - 1))


def pool(stretches):
    """Several stretches of one arm, by width: variances are averaged."""
    root = lambda values: (lambda known: math.sqrt(paired.mean(v * v for v in known))
                           if known else None)([v for v in values if v is not None])
    average = lambda values: paired.mean(v for v in values if v is not None)
    answer = []
    for same in zip(*stretches):
        jobs = range(len(same[0]["rate"]))
        answer.append({
            "width_s": same[0]["width_s"], "blocks": sum(s["blocks"] for s in same),
            "rate": [paired.mean(s["rate"][j] for s in same) for j in jobs],
            "variation": [root([s["variation"][j] for s in same]) for j in jobs],
            "log_sd": root([s["log_sd"] for s in same]),
            "autocorrelation": [[average([s["autocorrelation"][j][k] for s in same])
                                 for k in range(len(LAGS))] for j in jobs],
            "log_autocorrelation": [average([s["log_autocorrelation"][k] for s in same])
                                    for k in range(len(LAGS))]})
    return answer


def settling(lines, blocks, bin_s=0.01, steady_from=0.5):
    """Behind a switch: each job's rate by bins of time since the switch, relative to its rate in
    the block's last part, averaged over blocks. blocks: (switch, end) of one arm. With it the time
    of progress that a switch costs: what is missing until `steady_from` of the block, in seconds
    at the steady rate."""
    rows = [[] for _ in lines]
    lost = [[] for _ in lines]
    for switch, end in blocks:
        middle = switch + steady_from * (end - switch)
        for j, line in enumerate(lines):
            steady = line.speed(middle, end)
            if not steady:
                continue
            rows[j].append([s / steady for s in line.speeds(switch, middle, bin_s)])
            lost[j].append((middle - switch) - (line.at(middle) - line.at(switch)) / steady)
    curves = []
    for row in rows:
        length = min(map(len, row), default=0)
        curves.append([paired.mean(r[i] for r in row) for i in range(length)])
    return {"bin_s": bin_s, "blocks": len(blocks), "curves": curves,
            "lost_s": [paired.mean(values) for values in lost],
            "settled_s": [settled(curve, bin_s) for curve in curves]}


def settled(curve, bin_s, within=0.1):
    """Since when the curve, smoothed over three bins, stays within `within` of 1; None if never."""
    smooth = [paired.mean(curve[max(0, i - 1):i + 2]) for i in range(len(curve))]
    outside = [i for i, value in enumerate(smooth) if abs(value - 1) > within]
    if outside and outside[-1] + 1 >= len(curve):
        return None
    return (outside[-1] + 1 if outside else 0) * bin_s
