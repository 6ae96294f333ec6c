"""The page of `harness.report.html`. A module, not a data file: an installed package cannot lose it."""

from __future__ import annotations

TEMPLATE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>{{ result.verdict.value }} {{ result.deployment }}</title>
<style>
:root { --bg: #fff; --fg: #1d2127; --soft: #5d6673; --line: #dfe3e8; --panel: #f6f7f9;
  --pass: #1a7f45; --regression: #c4302b; --misconfigured: #8a3ab9; --infra: #9a6700; --unsupported: #0b7285; }
@media (prefers-color-scheme: dark) {
  :root { --bg: #15181c; --fg: #e3e6ea; --soft: #9aa4b1; --line: #30363d; --panel: #1d2127;
    --pass: #3fb96f; --regression: #f2716b; --misconfigured: #c58af0; --infra: #d9a441; --unsupported: #4cc3d6; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 2rem 1.25rem 4rem; background: var(--bg); color: var(--fg);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; display: flex; gap: .75rem; align-items: center; flex-wrap: wrap; }
h2 { font-size: 1.05rem; margin: 2.25rem 0 .6rem; }
.word { background: var(--tone); color: var(--bg); border-radius: .3rem; padding: .1rem .7rem;
  text-transform: uppercase; letter-spacing: .04em; }
.pass { --tone: var(--pass); } .regression { --tone: var(--regression); }
.misconfigured { --tone: var(--misconfigured); }
.infra, .interrupted { --tone: var(--infra); } .unsupported { --tone: var(--unsupported); }
.reason { font-size: 1.1rem; margin: .9rem 0; max-width: 60rem; overflow-wrap: anywhere; }
code, pre { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .86em; }
pre { margin: 0; padding: .7rem .9rem; background: var(--panel); border-radius: .3rem; white-space: pre-wrap;
  overflow-wrap: anywhere; max-height: 32rem; overflow-y: auto; }
.root { border-left: 4px solid var(--tone); }
.soft { color: var(--soft); } .bad { color: var(--regression); } .good { color: var(--pass); }
p { margin: .4rem 0; overflow-wrap: anywhere; }
a { color: inherit; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 500; white-space: nowrap; }
td.num, th.num { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.text { overflow-wrap: anywhere; }
table.facts th, td.check { width: 16rem; } table.figures { width: auto; min-width: 60%; }
.track { position: relative; height: 1rem; min-width: 12rem; }
.bar { position: absolute; top: .3rem; height: .6rem; min-width: 2px; border-radius: .15rem; background: var(--soft); }
.bar.failed, .bar.open { background: var(--regression); }
summary { cursor: pointer; } details { margin: .4rem 0; } details > pre { margin-top: .4rem; } td details { margin: 0; }
</style>
</head>
<body class="{{ result.verdict.value }}">
{% macro facts_table(values) %}
<table class="facts">
{% for name, value in values.items() %}
<tr><th scope="row">{{ name }}</th><td class="text">{{ value }}</td></tr>
{% endfor %}
</table>
{% endmacro %}
<h1><span class="word">{{ result.verdict.value }}</span> {{ result.deployment }}</h1>
<p class="reason">{{ result.reason }}</p>
{% if result.root_line %}
<pre class="root">{{ result.root_line }}</pre>
{% endif %}
{% if result.log %}
<p class="soft">in {% if log_href %}<a href="{{ log_href }}"><code>{{ result.log }}</code></a>
{% else %}<code>{{ result.log }}</code>{% endif %}</p>
{% endif %}
{% if result.next_step %}
<p>Next:</p><pre>{{ result.next_step }}</pre>
{% endif %}

{% if figures %}
<h2>Figures</h2>
<div class="wide"><table class="figures">
<tr><th>figure</th>
<th class="num">measured</th><th class="num">expected</th><th class="num">tolerance</th><th></th></tr>
{% for row in figures %}
<tr><td>{{ row.name }}</td><td class="num">{{ row.measured }}</td><td class="num">{{ row.expected }}</td>
<td class="num">{{ row.tolerance }}</td>
<td>{% if row.ok is true %}<span class="good">✓</span>{% elif row.ok is false %}<span class="bad">✗ outside</span>\
{% endif %}</td></tr>
{% endfor %}
</table></div>
{% if baseline %}
<details><summary>Baseline</summary>{{ facts_table(baseline) }}</details>
{% endif %}
{% endif %}

{% if result.checks %}
<h2>Checks: {{ passed | length }} of {{ result.checks | length }} passed</h2>
{% for check in failed %}
<p><span class="bad">✗ {{ check.name }}</span> <span class="soft">{{ check.verdict }}</span><br>{{ check.summary }}</p>
{% if check.evidence %}
<pre>{{ check.evidence | join("\\n") }}</pre>
{% endif %}
{% if check.figures %}
<details><summary class="soft">figures</summary>{{ facts_table(scalars(check.figures)) }}</details>
{% endif %}
{% endfor %}
{% if passed %}
<div class="wide"><table>
{% for check in passed %}
<tr><td class="check"><span class="good">✓</span>&nbsp;{{ check.name }}</td>
<td class="text">{{ check.summary }}</td></tr>
{% endfor %}
</table></div>
{% endif %}
{% endif %}

{% if phases %}
<h2>Phases: {{ "%.1f" | format(result.wall_seconds) }} s wall</h2>
<table>
{% for bar in phases %}
<tr><td>{{ bar.phase.name }}</td><td class="num">{{ "%.1f" | format(bar.phase.seconds) }} s</td>
<td>{% if bar.phase.state == "failed" %}<span class="bad">failed</span>\
{% elif bar.phase.state == "open" %}<span class="bad">not finished</span>{% endif %}</td>
<td style="width:60%"><div class="track"><div class="bar {{ bar.phase.state }}" \
style="left:{{ "%.2f" | format(bar.left) }}%;width:{{ "%.2f" | format(bar.width) }}%"></div></div></td></tr>
{% endfor %}
</table>
{% endif %}

<h2>Run</h2>
{{ facts_table(about) }}
<p class="soft"><a href="{{ result_href }}">{{ result_href }}</a> holds all of it.</p>
{% for title, values in tables.items() if values %}
<h2>{{ title }}</h2>
{{ facts_table(values) }}
{% endfor %}
{% if cleanup %}
<h2>Cleanup</h2>
{{ facts_table(cleanup) }}
{% endif %}

<h2>Requests</h2>
<p class="soft">{{ requests_line }}</p>
{% if requests %}
<div class="wide"><table>
<tr><th class="num">#</th><th>prompt</th><th>stage</th><th class="num">status</th><th class="num">prompt tokens</th>
<th class="num">tokens</th><th>finish</th><th class="num">prefill s</th><th class="num">total s</th>
<th class="num">accepted per step</th><th>output</th></tr>
{% for row in requests %}
{% set request = row.facts %}
<tr><td class="num">{{ request.index }}</td><td>{{ request.prompt_id }}</td><td>{{ request.stage }}</td>
<td class="num {{ "" if row.ok else "bad" }}">{{ "none" if request.status is none else request.status }}</td>
<td class="num">{{ "" if request.prompt_tokens is none else request.prompt_tokens }}</td>
<td class="num">{{ "?" if request.completion_tokens is none else request.completion_tokens }}\
<span class="soft">/{{ request.max_tokens }}</span></td>
<td>{{ request.finish_reason or "" }}</td>
<td class="num">{{ "" if request.first_hop_s is none else "%.3f" | format(request.first_hop_s) }}</td>
<td class="num">{{ "%.3f" | format(request.duration_s) }}</td>
<td class="num">{{ "" if row.accepted is none else "%.2f" | format(row.accepted) }}</td>
<td class="text">{% if row.error %}<span class="bad">{{ row.error }}</span>{% endif %}
{% if row.text %}<details><summary class="soft">text</summary><pre>{{ row.text }}</pre></details>{% endif %}</td></tr>
{% endfor %}
</table></div>
{% if more_requests %}<p class="soft">{{ more_requests }} more are in requests.jsonl.</p>{% endif %}
{% endif %}

{% if tails %}
<h2>Log tails</h2>
{% for tail in tails %}
<details{% if tail.open %} open{% endif %}><summary>{{ tail.name }}</summary><pre>{{ tail.text }}</pre></details>
{% endfor %}
{% endif %}
</body>
</html>
"""
