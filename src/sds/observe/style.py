"""How a page about a run looks: one sheet of CSS, light and dark."""

from __future__ import annotations

__all__ = ["CSS"]

CSS = """
:root { --paper: #fbfaf7; --ink: #1f2328; --faint: #6e747e; --rule: #e4e1d8; --card: #ffffff;
  --a: #2f6f9f; --b: #c8553d; --c: #5b8c5a; --d: #b58900; --e: #7b5ea7; --f: #4a4e57; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181c; --ink: #e6e3dc; --faint: #9a9ea6; --rule: #2c3036; --card: #1d2025;
    --a: #6fb1de; --b: #e58a73; --c: #8fc08d; --d: #dcb44a; --e: #b39ddb; --f: #aab0bb; } }
.c0 { --own: var(--a); } .c1 { --own: var(--b); } .c2 { --own: var(--c); }
.c3 { --own: var(--d); } .c4 { --own: var(--e); } .c5 { --own: var(--f); }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1240px; padding: 28px 20px 60px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 18px; margin: 36px 0 10px; } p { margin: 4px 0 0; }
.faint { color: var(--faint); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(135px, 1fr)); gap: 12px; margin: 20px 0;
  padding: 0; }
.facts li { list-style: none; background: var(--card); border: 1px solid var(--rule); border-radius: 8px;
  padding: 10px 14px; }
.facts b { display: block; font-size: 21px; font-variant-numeric: tabular-nums; white-space: nowrap; }
.verdict { border-left: 4px solid var(--b); background: var(--card); padding: 10px 14px; margin: 16px 0; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(460px, 100%), 1fr)); gap: 16px; }
figure { margin: 0; background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 12px 14px; }
figcaption { font-weight: 600; } svg { width: 100%; height: auto; display: block; }
.grid { stroke: var(--rule); } .tick { fill: var(--faint); font-size: 11px; }
.line { fill: none; stroke: var(--own); stroke-width: 2; } .area { fill: var(--own); opacity: .8; }
.dot { fill: var(--own); opacity: 0; } .dot:hover { opacity: 1; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 6px 0 0; padding: 0; font-size: 13px; }
.legend li { list-style: none; }
.legend i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 6px;
  background: var(--own); }
.table { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
th { text-align: left; color: var(--faint); font-weight: 500; }
th, td { padding: 5px 18px 5px 0; border-bottom: 1px solid var(--rule); vertical-align: top; overflow-wrap: anywhere; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; width: 1%; padding-right: 28px; }
"""
