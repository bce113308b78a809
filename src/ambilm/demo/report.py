"""``report.html``: one page that needs no other file, for a reader who was not there when it was measured."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ambilm.demo.figures import data_uri, dependence_figure, layouts_figure, losses_figure
from ambilm.demo.measure import (
    CAUSAL,
    PASSAGES,
    RETRIEVAL,
    SIMILARITY,
    STORIES,
    Entries,
    ShownInfill,
    ShownNeighbours,
)
from ambilm.demo.text import DemoText


@dataclass(frozen=True)
class Findings:
    """Everything the page shows.

    Attributes:
        base, adapted: entries of the two results files.
        same_logits, same_texts: whether generation is bit for bit what it was before training.
        log: lines of ``log.jsonl``.
        facts: name and value of settings, versions and machine.
        seconds: seconds of each phase.
    """

    base: Entries
    adapted: Entries
    same_logits: bool
    same_texts: bool
    infills: Sequence[ShownInfill]
    neighbours: Sequence[ShownNeighbours]
    dependence: dict[str, dict[str, Any]]
    log: Sequence[dict[str, Any]]
    facts: dict[str, dict[str, object]]
    seconds: dict[str, float]


@dataclass(frozen=True)
class Reading:
    """One figure of the base model, named by how the model was read."""

    label: str
    value: float
    error: float | None = None


@dataclass(frozen=True)
class Measure:
    """A measured thing: the readings of the base, and the adapted model's figure that they are compared with."""

    name: str
    metric: str
    n: int
    readings: list[Reading]
    adapted: Reading
    lower_is_better: bool = False

    def change(self, reading: Reading) -> tuple[str, str]:
        """What adaptation changed against a reading, and ``better``, ``worse`` or ``same``."""
        difference = self.adapted.value - reading.value
        if difference == 0:
            return "= 0", "same"
        arrow = "▲" if difference > 0 else "▼"
        better = "better" if (difference < 0) == self.lower_is_better else "worse"
        if self.lower_is_better:  # a perplexity falls by a share
            return f"{arrow} {abs(difference) / reading.value:.0%}", better
        return f"{arrow} {abs(difference):.1f}", better


def measures(base: Entries, adapted: Entries, text: DemoText) -> list[Measure]:
    """What the table shows, in its order."""
    found = []
    if SIMILARITY in adapted:
        similarity_rows = (
            ("@causal-mean", "causal, mean pooling"),
            ("@bidirectional-mean", "both directions, untrained, mean pooling"),
            ("", "causal, PromptEOL template"),
        )
        found.append(
            _percent("Sentence similarity, STS-B dev", "Spearman × 100", SIMILARITY, similarity_rows, base, adapted)
        )
    rows = (("@causal-mean", "causal, mean pooling"), ("", "causal, PromptEOL template"))
    name = f"A sentence finds its own paragraph, {text.passages_name}"
    found.append(_percent(name, "recall@1 × 100", RETRIEVAL, rows, base, adapted))
    for key, name in (
        (STORIES, f"Missing sentence, {text.stories_name}"),
        (PASSAGES, f"Missing 8 to 32 tokens, {text.passages_name}"),
    ):
        entry, own = base[key], adapted[key]
        readings = [
            Reading("left to right", entry["left_to_right"], entry["left_to_right_error"]),
            Reading("both sides, untrained, the paper's mask", entry["untrained_paper_mask"]),
            Reading("both sides, untrained, start token kept as sink", entry["main"], entry["standard_error"]),
        ]
        figure = Reading("both sides", own["main"], own["standard_error"])
        found.append(Measure(name, "perplexity", own["n"], readings, figure, lower_is_better=True))
    return found


def _percent(
    name: str, metric: str, key: str, rows: Iterable[tuple[str, str]], base: Entries, adapted: Entries
) -> Measure:
    def reading(label: str, entry: dict[str, Any]) -> Reading:
        error = entry["standard_error"]
        return Reading(label, 100 * entry["main"], None if error is None else 100 * error)

    readings = [reading(label, base[key + row]) for row, label in rows]
    return Measure(name, metric, adapted[key]["n"], readings, reading("its own reading", adapted[key]))


def summary(found: Sequence[Measure]) -> list[str]:
    """One line for each measure, for the terminal."""
    return [
        f"{measure.name} ({measure.metric}, n {measure.n}): "
        + ", ".join(f"{reading.label} {reading.value:.1f}" for reading in measure.readings)
        + f" -> adapted {measure.adapted.value:.1f}"
        for measure in found
    ]


def write_report(path: Path, text: DemoText, found: Findings, model_directory: Path) -> None:
    """Writes the page, whole or not at all."""
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text(page(text, found, model_directory), encoding="utf-8")
    temporary.replace(path)


def page(text: DemoText, found: Findings, model_directory: Path) -> str:
    """The page as HTML."""
    sections = [
        ("Before and after", _before_and_after(text, found)),
        ("Generation is what it was", _lossless(found)),
        ("Missing sentences, filled in", _infills(found.infills)),
        ("Nearest neighbours", _neighbours(text, found.neighbours)),
        ("Who may see whom", _layouts()),
        ("Training", _training(found)),
        ("Where attention would go", _dependence(found)),
        ("Use the model", _use(model_directory)),
        ("How this was made", _facts(found)),
    ]
    body = "\n".join(f"<section>\n<h2>{title}</h2>\n{content}\n</section>" for title, content in sections)
    minutes = sum(found.seconds.values()) / 60
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>AmbiLM: one decoder, both directions</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<p class="kicker">AmbiLM demo</p>
<h1>One decoder, both&nbsp;directions</h1>
<p class="lead">SmolLM2-135M, a small decoder-only language model, was taught in {found.log[-1]["step"] + 1} training steps
of MAGNET to read text in both directions. The same weights now embed sentences and fill in what is missing from both
sides; generation runs on them untouched. It trained on {html.escape(text.source)}; every
figure below is measured on text that was held out. All of it took {minutes:.0f} minutes on this machine.</p>
</header>
<main>
{body}
</main>
</body>
</html>
"""


def _before_and_after(text: DemoText, found: Findings) -> str:
    rows = []
    for measure in measures(found.base, found.adapted, text):
        direction = "lower is better" if measure.lower_is_better else "higher is better"
        rows.append(
            f'<tr class="measure"><th colspan="3" scope="rowgroup">{html.escape(measure.name)} '
            f"<small>{measure.metric}, {direction}, n = {measure.n}</small></th></tr>"
        )
        for reading in measure.readings:
            change, kind = measure.change(reading)
            rows.append(
                f"<tr><td>base, {html.escape(reading.label)}</td><td>{_number(reading)}</td>"
                f'<td class="{kind}">{change}</td></tr>'
            )
        adapted = measure.adapted
        rows.append(f'<tr class="own"><td>adapted, {adapted.label}</td><td>{_number(adapted)}</td><td></td></tr>')
    head = "<thead><tr><th>reading</th><th>figure</th><th>adapted against it</th></tr></thead>"
    return f"""<div class="wide"><table class="figures">{head}<tbody>{"".join(rows)}</tbody></table></div>
<p class="note">± is one standard error (bootstrap over the examples). Few examples are measured, so that the demo is quick:
take a difference of less than two errors for none. Infilling has two causes of improvement, seeing both sides and having
trained on text of this kind; <code>docs/magnet.md</code> in the repository sets an equally trained left-to-right control
beside it.</p>"""


def _number(reading: Reading) -> str:
    error = "" if reading.error is None else f' <span class="error">± {reading.error:.1f}</span>'
    return f"{reading.value:.1f}{error}"


def _lossless(found: Findings) -> str:
    before, after = found.base[CAUSAL], found.adapted[CAUSAL]
    rows = [
        ("logits of three held-out texts (torch.equal)", found.same_logits),
        ("greedy continuations of three prompts", found.same_texts),
        (
            f"causal perplexity: {before['main']:.4f} before, {after['main']:.4f} after",
            before["main"] == after["main"],
        ),
    ]
    cells = "".join(
        f'<li class="{"better" if same else "worse"}">{"identical" if same else "DIFFERENT"}: {html.escape(label)}</li>'
        for label, same in rows
    )
    return f"""<p>The adaptation lives beside the weights and works only when text is read in both directions. Compared before
training, and after training, saving, loading, embedding and infilling:</p>
<ul class="checks">{cells}</ul>"""


def _infills(infills: Sequence[ShownInfill]) -> str:
    cards = []
    for shown in infills:
        left, right = html.escape(shown.left), html.escape(shown.right)

        def told(piece: str, kind: str, end: str, left: str = left) -> str:
            return f"<p>{left} <mark class={kind}>{html.escape(piece) or '(nothing)'}</mark>{end}</p>"

        columns = (
            ("Written from both sides", told(shown.infill, "infill", " " + right)),
            ("What stood there", told(shown.removed, "truth", " " + right)),
            ("Base, from the left side only", told(shown.left_to_right, "left", "")),
        )
        cards.append(
            '<div class="card">' + "".join(f"<div><h3>{title}</h3>{told}</div>" for title, told in columns) + "</div>"
        )
    return f"""<p>One sentence was taken out. The adapted model writes it knowing both sides and stops by itself; the base
continues the left side and is told how long the sentence is. The stories are the first of a random draw, not chosen.</p>
{"".join(cards)}"""


def _neighbours(text: DemoText, neighbours: Sequence[ShownNeighbours]) -> str:
    def listed(found: Sequence[str], partner: str) -> str:
        return "".join(
            f'<li class="{"hit" if item == partner else ""}">{html.escape(item)}{" ✓" if item == partner else ""}</li>'
            for item in found
        )

    rows = "".join(
        f'<div class="card"><div><h3>Text</h3><p>{html.escape(shown.text)}</p></div>'
        f"<div><h3>Before</h3><ol>{listed(shown.before, shown.partner)}</ol></div>"
        f"<div><h3>After</h3><ol>{listed(shown.after, shown.partner)}</ol></div></div>"
        for shown in neighbours
    )
    return f"""<p>The two closest of all held-out texts. Texts come in pairs ({text.partners_name}); ✓ marks the one that
belongs to the text. Before: base, causal, mean pooling.</p>{rows}"""


def _layouts() -> str:
    return f"""<p>Each row is a token that looks, each column a token that is looked at. <span class="dot context"></span>
context tokens see all context, on both sides; <span class="dot span"></span> span tokens see the context and the span
tokens before them. The four layouts are these two roles, given to different tokens. The start token sees only itself: a
causal model rests unused attention there.</p>
{_image(layouts_figure(), "Four attention layouts as matrices: causal, bidirectional, prefix, infill")}"""


def _training(found: Findings) -> str:
    tokens = sum(line["tokens"] for line in found.log)
    seconds = sum(line["seconds"] for line in found.log)
    return f"""{_image(losses_figure(found.log), "Losses of each training step")}
<p class="note">MNTP: a masked token is predicted from both sides. MSG: a missing span is written from both sides. SSCL:
texts that belong together are told from all others in the batch. {len(found.log)} steps, {tokens:,} tokens,
{tokens / seconds:,.0f} tokens a second.</p>"""


def _dependence(found: Findings) -> str:
    base, adapted = found.dependence["base"], found.dependence["adapted"]
    return f"""<p>If nothing hid later tokens, how much attention would they get (Li et al. 2025)? Base
{base["after"]:.1f} %, adapted {adapted["after"]:.1f} %; mean over heads, layers and three held-out stories.</p>
{_image(dependence_figure(found.dependence), "Attention dependence of base and adapted model")}"""


def _image(figure: Figure, description: str) -> str:
    return f'<div class="wide"><img src="{data_uri(figure)}" alt="{description}"></div>'


def _use(model_directory: Path) -> str:
    return f"""<pre><code>from ambilm import AmbiLM
model = AmbiLM.from_pretrained({html.escape(repr(model_directory.as_posix()))})
print(model.infill("She missed the bus, so [BLANK] She was late for work.").text)</code></pre>"""


def _facts(found: Findings) -> str:
    seconds = {name: f"{value:.0f} s" for name, value in found.seconds.items()}
    groups: dict[str, Mapping[str, object]] = {**found.facts, "Time": seconds}
    return "".join(
        f"<h3>{html.escape(title)}</h3><dl>"
        + "".join(
            f"<div><dt>{html.escape(str(name))}</dt><dd>{html.escape(str(value))}</dd></div>"
            for name, value in facts.items()
        )
        + "</dl>"
        for title, facts in groups.items()
    )


STYLE = """
:root{--ink:#22303c;--faint:#5d6b77;--line:#e3e7ea;--adapted:#0f766e;--span:#d97706;--paper:#fff}
*{box-sizing:border-box}
body{margin:0 auto;padding:3.5rem 1.25rem 6rem;max-width:54rem;color:var(--ink);background:var(--paper);
font:1.0625rem/1.6 Charter,'Bitstream Charter','Iowan Old Style','Source Serif 4',Georgia,serif;
-webkit-text-size-adjust:100%}
h1,h2,h3,th,dl,table,.kicker,.note small{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',sans-serif}
h1{font-size:clamp(2rem,6vw,3rem);line-height:1.1;letter-spacing:-.025em;margin:.2em 0 .5em;font-weight:700}
h2{font-size:1.3rem;letter-spacing:-.01em;margin:3.2rem 0 .8rem;font-weight:650}
h3{font-size:.78rem;margin:0 0 .35rem;color:var(--faint);font-weight:600;letter-spacing:.02em}
.kicker{color:var(--adapted);font-weight:650;font-size:.85rem;margin:0}
.lead{font-size:1.18rem;line-height:1.55}
p{margin:.6rem 0}
img{display:block;width:100%;min-width:38rem;height:auto;margin:1rem 0}
.note{font-size:.92rem;color:var(--faint)}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.94rem;line-height:1.4;font-variant-numeric:tabular-nums}
td,th{padding:.4rem .6rem;text-align:left;vertical-align:baseline}
thead th{color:var(--faint);font-size:.78rem;font-weight:600;border-bottom:1px solid var(--line)}
.figures td:nth-child(n+2),.figures thead th:nth-child(n+2){text-align:right;white-space:nowrap}
.measure th{padding-top:1.3rem;font-weight:650}
.measure small{display:block;font-weight:400;color:var(--faint)}
.own td{font-weight:650;color:var(--adapted);border-top:1px solid var(--line)}
.error{color:var(--faint);font-weight:400;font-size:.85em}
.better{color:var(--adapted)}
.worse{color:#b42318}
.checks{list-style:none;padding:0}
.checks li{padding:.3rem 0}
.checks li::before{content:'✓ ';font-weight:700}
.checks li.worse::before{content:'✗ '}
.card{display:grid;grid-template-columns:repeat(auto-fit,minmax(14rem,1fr));gap:.9rem 1.6rem;padding:1.1rem 0;
border-top:1px solid var(--line);font-size:.98rem;line-height:1.5}
.card p{margin:0}
.card ol{margin:0;padding-left:1.2rem}
.hit{color:var(--adapted);font-weight:600}
mark{color:inherit;padding:.05em .2em;border-radius:.25em;-webkit-box-decoration-break:clone;box-decoration-break:clone}
mark.infill{background:#ccebe6}
mark.truth{background:#e9edf0}
mark.left{background:#fbe6c8}
.dot{display:inline-block;width:.75em;height:.75em;border-radius:.15em}
.dot.context{background:var(--adapted)}
.dot.span{background:var(--span)}
pre{overflow-x:auto;background:#f4f6f7;padding:1rem 1.1rem;border-radius:.4rem;font-size:.88rem;line-height:1.55}
code{font-family:ui-monospace,'SF Mono',Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:.92em}
pre code{font-size:1em}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(15rem,1fr));gap:.15rem 1.6rem;margin:0 0 1.4rem;
font-size:.88rem}
dl div{display:flex;justify-content:space-between;gap:1rem;border-bottom:1px solid var(--line);padding:.2rem 0}
dt{color:var(--faint);white-space:nowrap}
dd{margin:0;text-align:right;overflow-wrap:anywhere}
@media (max-width:38rem){td,th{padding:.4rem .35rem}td:first-child{padding-left:0}.error{display:block}
.figures thead th:nth-child(n+2){white-space:normal}}
@media print{body{padding:0}section{break-inside:avoid-page}}
"""
