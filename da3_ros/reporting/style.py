"""The style of a report's page: dark or light as the reader's system is, wide or narrow."""

# ``--series1`` to ``--series6`` are the colours of the plots (``plots.SERIES``).
STYLE = """
:root { color-scheme: light dark; --ink: #1c2126; --dim: #59636e; --ground: #ffffff;
  --panel: #f4f6f8; --grid: #c9d1d9; --link: #0b5cad; --warn: #a15c00; --good: #1a7f37;
  --series1: #1f6fb4; --series2: #d1690e; --series3: #2a8f4e; --series4: #b3364b;
  --series5: #7a54b8; --series6: #8a6d3b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --dim: #9aa5b1; --ground: #0f1419;
  --panel: #1a2129; --grid: #3a444f; --link: #6cb2ff; --warn: #e0a03c; --good: #4cc070;
  --series1: #5aa9ee; --series2: #f2995a; --series3: #5fc785; --series4: #f0788c;
  --series5: #b397f0; --series6: #cbb07a; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0 auto; padding: 1rem clamp(0.9rem, 3vw, 2.5rem) 3rem; max-width: 80rem;
  background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0.5rem 0 0.2rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 0.6rem; padding-top: 0.6rem;
  border-top: 1px solid var(--grid); }
h3 { font-size: 1rem; margin: 1.2rem 0 0.4rem; }
p { margin: 0.4rem 0; max-width: 46rem; }
p, li, a, figcaption, summary { overflow-wrap: anywhere; }
.dim, figcaption, .note { color: var(--dim); font-size: 0.88rem; }
nav { display: flex; flex-wrap: wrap; gap: 0.2rem 1rem; font-size: 0.9rem; margin: 0.8rem 0; }
a { color: var(--link); }
code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 0.9em;
  overflow-wrap: anywhere; }
.tiles { display: grid; gap: 0.6rem; margin: 1rem 0;
  grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); }
.tile { background: var(--panel); border-radius: 6px; padding: 0.6rem 0.8rem; }
.tile b { display: block; font-size: 1.25rem; line-height: 1.3; overflow-wrap: anywhere; }
.tile span { color: var(--dim); font-size: 0.85rem; }
.advice { list-style: none; padding: 0; margin: 0.8rem 0; display: grid; gap: 0.6rem; }
.advice li { background: var(--panel); border-left: 4px solid var(--warn); border-radius: 4px;
  padding: 0.6rem 0.9rem; }
.advice b { display: block; }
.well { border-left: 4px solid var(--good); background: var(--panel); border-radius: 4px;
  padding: 0.6rem 0.9rem; }
.plots { display: grid; gap: 1.2rem 2rem; align-items: start;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); }
figure { margin: 0.4rem 0; }
.plots svg { display: block; width: 100%; max-width: 36rem; height: auto; font-family: inherit; }
.rows { display: grid; gap: 1.2rem 1.6rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 34rem), 1fr)); }
.keyframe { display: grid; gap: 4px; grid-template-columns: repeat(4, 1fr); }
@media (max-width: 34rem) { .keyframe { grid-template-columns: repeat(2, 1fr); } }
.tracked { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%,
  17rem), 1fr)); }
.keyframe img, .tracked img { width: 100%; height: auto; display: block; border-radius: 3px; }
.keyframe span { font-size: 0.78rem; color: var(--dim); line-height: 1.3; display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.92rem; margin: 0.5rem 0; }
th, td { text-align: left; padding: 0.3rem 1rem 0.3rem 0; border-bottom: 1px solid var(--grid);
  vertical-align: top; overflow-wrap: break-word; }
.settings td { overflow-wrap: anywhere; }
td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.bar { height: 0.6rem; border-radius: 3px; max-width: 20rem; margin: 0.3rem 0; }
details { margin: 0.6rem 0; }
summary { cursor: pointer; }
.advice details { font-size: 0.88rem; margin: 0.2rem 0 0; }
.advice summary { color: var(--link); }
.advice pre { white-space: pre-wrap; overflow-wrap: anywhere; font-size: 0.8rem; margin: 0.4rem 0;
  font-family: ui-monospace, "DejaVu Sans Mono", monospace; }
"""
