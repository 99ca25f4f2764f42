"""Records steps whose spans, functions, counters and metadata have names of any kind, in the directory that is named first."""

import sys

import stepscope as sc

NAMES = [
    '</script><script>document.title = "changed"</script>',
    "<img src=x onerror=\"document.title='changed'\">",
    "</style><style>body { display: none }</style>",
    "quo\"te's & &amp; `code`",
    "nul\x00bell\x07escape\x1b[31m",
    "line\u2028paragraph\u2029",
    "right\u202eleft",
    "lone\ud800",
    "{{ 7 * 7 }}{% raw %}",
    "long " * 200,
    "tab\tnew\nline",
    "",
]


def named(name):
    """A function of that name in a file of that name, where samples of the stack find it."""
    room = {}
    file = name.encode("utf-8", "replace").decode().replace("\x00", "")
    exec(compile("import time\ndef f():\n    time.sleep(0.004)\n", file or "<string>", "exec"), room)
    found = room["f"]
    text = name.encode("utf-8", "replace").decode()
    found.__code__ = found.__code__.replace(co_name=text, co_qualname=text)
    return found


functions = [named(name) for name in NAMES]
metadata = {name: [name] for name in NAMES}
with sc.trace(name=NAMES[0], output_dir=sys.argv[1], metadata=metadata) as profiler:
    for _ in range(30):
        for name, function in zip(NAMES, functions, strict=True):
            with sc.span(name, category=NAMES[1]):
                function()
        sc.counter(NAMES[0], 1.0)
        profiler.step()
