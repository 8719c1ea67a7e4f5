# SPDX-License-Identifier: Apache-2.0
"""Figures of the evaluation, as SVG and PNG; needs matplotlib."""

import pathlib
import textwrap

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt  # noqa: E402

# The same colour for a mode wherever it is drawn.
COLOURS = {"temporal": "#999999", "mps": "#e69f00", "mps50": "#f0e442", "mps-priority": "#d55e00",
           "static": "#cc79a7", "exclusive": "#000000", "native": "#000000", "ours": "#0072b2",
           "ours-tpot-first": "#56b4e9", "ours-alone": "#0072b2"}
SPARE = ("#009e73", "#8c564b", "#7f3fbf", "#17becf", "#bcbd22", "#e377c2", "#2ca02c", "#1f4e79")


def colour(name, others):
    return COLOURS.get(name) or SPARE[[o for o in others if o not in COLOURS].index(name)
                                      % len(SPARE)]


def short(value):
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


class Figures:
    def __init__(self, directory, titles):
        plt.rcParams.update({"font.size": 11, "svg.hashsalt": "vitamin"})
        self.directory, self.titles = pathlib.Path(directory), titles

    def _save(self, figure, name):
        figure.savefig(self.directory / f"{name}.svg", metadata={"Date": None},
                       bbox_inches="tight")
        figure.savefig(self.directory / f"{name}.png", dpi=110, bbox_inches="tight")
        plt.close(figure)

    def _title(self, axes, name, note):
        axes.set_title(f"{name}: {self.titles[name]}\n{note}", fontsize=10)

    @staticmethod
    def _log(axes):
        """Plain numbers on a logarithmic axis."""
        axes.set_xscale("log")
        for formatter in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
            formatter(lambda value, _: f"{value:g}")
        axes.tick_params(axis="x", which="both", labelsize=8)

    @staticmethod
    def _legend(axes, columns=4):
        _, labels = axes.get_legend_handles_labels()
        if 1 < len(labels) != len(axes.get_xticks()):
            axes.legend(fontsize=8, ncols=columns, loc="upper center", bbox_to_anchor=(0.5, -0.16))

    @staticmethod
    def _bars(axes, groups):
        """Groups beside each other, each as wide as it has bars."""
        modes = list(dict.fromkeys(m for g in groups.values() for m in g))
        at, ticks, seen = 0.0, [], set()
        for values in groups.values():
            shown = [m for m in modes if values.get(m) is not None]
            for i, mode in enumerate(shown):
                bar = axes.bar(at + i, values[mode], 0.9, color=colour(mode, modes),
                               label=None if mode in seen else mode)
                seen.add(mode)
                axes.bar_label(bar, [short(values[mode])], fontsize=8, rotation=90, padding=2)
            ticks.append(at + (len(shown) - 1) / 2)
            at += len(shown) + 1.2
        wrapped = ["\n".join(textwrap.fill(part.replace("_", " "), 14)
                             for part in group.split("\n")) for group in groups]
        axes.set_xticks(ticks, wrapped, fontsize=9)
        axes.margins(y=0.2)
        return at

    @staticmethod
    def _width(groups):
        return max(5.0, 1.2 + 0.3 * sum(len(g) + 1.2 for g in groups.values()))

    def bars(self, name, groups, label, note, log=False):
        figure, axes = plt.subplots(figsize=(self._width(groups), 4.2))
        if log:
            axes.set_yscale("log")
        self._bars(axes, groups)
        axes.set_ylabel(label)
        self._title(axes, name, note)
        self._legend(axes)
        self._save(figure, name)

    def training(self, name, sums, against):
        """Sums of normalised rates; and ours over each baseline, beside the paper's."""
        wide = (self._width(sums), self._width(against) if against else 0)
        figure, axes = plt.subplots(1, 2 if against else 1, figsize=(sum(wide), 4.2), squeeze=False,
                                    layout="constrained",
                                    gridspec_kw={"width_ratios": wide} if against else None)
        left, right = axes[0][0], axes[0][-1]
        self._bars(left, sums)
        left.axhline(1, color="#666666", linewidth=0.8, linestyle=":")
        left.set_ylabel("sum of rates, each / alone")
        self._title(left, name, "1: two jobs in perfect turns")
        self._legend(left)
        if against:
            self._bars(right, against)
            right.axhspan(1.38, 1.63, color="#009e73", alpha=0.2, linewidth=0)
            right.text(0, 1.64, "the paper's geo-means, 1.38 to 1.63", fontsize=8,
                       color="#00664b")
            right.axhline(1, color="#666666", linewidth=0.8, linestyle=":")
            right.set_ylim(0, max(1.85, right.get_ylim()[1]))
            right.set_ylabel("throughput policy / baseline")
            right.set_title("over each baseline, neighbouring cells", fontsize=10)
            self._legend(right)
        self._save(figure, name)

    def mixed(self, name, points, relative):
        """Latency against training, absolutely; and ours over each baseline, the paper's region
        beside."""
        figure, axes = plt.subplots(1, 2 if relative else 1, squeeze=False, layout="constrained",
                                    figsize=(13 if relative else 7, 4.6))
        left, right = axes[0][0], axes[0][-1]
        for mark, (group, at) in zip("osD^v<>*" * 4, points.items()):
            for mode, (x, y) in at.items():
                plain = mode.split(":")[0]
                left.plot(x, y, mark, color=colour(plain, [plain]), markersize=7)
                left.annotate(mode, (x, y), fontsize=7, xytext=(4, 4), textcoords="offset points")
            left.plot([], [], mark, color="#444444", label=group.replace("\n", " "))
            static = sorted(v for m, v in at.items() if m.startswith("static"))
            if len(static) > 1:
                left.plot(*zip(*static), color=COLOURS["static"], linewidth=1)
        left.set_xlabel("p95 latency / exclusive")
        left.set_ylabel("training / exclusive")
        self._log(left)
        left.margins(0.15)
        self._title(left, name, "upper left is better")
        self._legend(left, 2)
        if relative:
            right.axvspan(0.416, 0.919, color="#009e73", alpha=0.1, linewidth=0)
            right.axhspan(1.05, 1.36, color="#009e73", alpha=0.1, linewidth=0)
            for mark, (ours, at) in zip("os^", relative.items()):
                right.plot(*zip(*at.values()), mark, color=COLOURS.get(ours, "#0072b2"),
                           linestyle="none", label=f"{ours} / baseline")
                for mode, where in at.items():
                    right.annotate(mode, where, fontsize=7, xytext=(4, 4),
                                   textcoords="offset points")
            right.axvline(1, color="#666666", linewidth=0.8, linestyle=":")
            right.axhline(1, color="#666666", linewidth=0.8, linestyle=":")
            self._log(right)
            right.margins(0.15)
            right.set_xlabel("p99 latency / baseline")
            right.set_ylabel("training / baseline")
            right.set_title("over each baseline; shaded: the paper's p99 -8.1 to -58.4 %,\n"
                            "training 1.05 to 1.36 x", fontsize=10)
            self._legend(right, 2)
        self._save(figure, name)

    def memory(self, name, series, paper):
        """`series`: name -> (entries, GPU MiB, resident MiB); `paper`: name -> (GPU, resident)."""
        figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
        for place, (axis, label) in enumerate(zip(axes, ("GPU memory, MiB", "resident, MiB"))):
            for i, (what, points) in enumerate(series.items()):
                at = sorted((p[0], p[1 + place]) for p in points)
                axis.plot(*zip(*at), "*" if len(at) == 1 else "o-", label=what, zorder=3,
                          color=COLOURS["ours"] if what == "Vitamin" else SPARE[i],
                          markersize=15 if len(at) == 1 else 5)
                axis.annotate(short(at[-1][1]), at[-1], fontsize=8, xytext=(6, 4),
                              textcoords="offset points")
            for style, (what, values) in zip(("--", ":"), paper.items()):
                axis.axhline(values[place], color="#444444", linestyle=style, linewidth=1,
                             label=f"{what}: {values[place]:,}")
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xlabel("contexts of the pool")
            axis.set_ylabel(label)
            axis.xaxis.set_major_formatter(lambda v, _: f"{v:.0f}")
        self._title(axes[0], name, "green contexts, and contexts of MPS")
        axes[1].legend(fontsize=8)
        self._save(figure, name)
