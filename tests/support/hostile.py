"""Completions with markup, scripts and control characters, for tests of everything that shows completions."""

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)><svg onload=alert(3)><iframe src='//beacon'></iframe>",
    "![beacon](http://127.0.0.1:9/beacon.png) [press](javascript:alert(4)) <a href='javascript:alert(5)'>press</a>",
    "# Iteration 9: 100%\n| a | b |\n|---|---|\n| promoted | yes |\n\n---\n> quoted\n- listed",
    "```\n</code></pre><script>document.title='taken'</script>\n```\n````\n~~~\n# out\n~~~\n`````html\n<h1>out</h1>",
    "    indented\n\t<b>tab</b>\r\n<!-- comment -->\r<![CDATA[ x ]]> &lt;b&gt; &#60;i&#62; &amp;",
    "nul \x00 bell \x07 escape \x1b[31mred\x1b[0m rtl \u202eevil\u2066 zero\u200bwidth \u2028 line \ufeff \ue000",
    "a" * 1_000_000,
    "`" * 50_000,
    "|" * 500 + "\n" * 5_000 + "[x]: http://127.0.0.1:9/beacon.png 'x'\n![x]",
    "",
)
