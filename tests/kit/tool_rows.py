"""Tests of each tool of `workdir`, as rows: a command, its status, and its output."""

from __future__ import annotations

from dataclasses import dataclass

#: Files that are there before each row, by name.
FILES: dict[str, str] = {
    "fruit": "apple\nBanana\ncherry\nbanana\n", "numbers": "10\n9\n10\n2\n", "left": "1 a\n2 b\n3 c\n",
    "right": "1 x\n3 z\n", "one": "a\nb\nc\n", "two": "a\nB\nc\n", "words": "one two three\n", "tabs": "a\tb\tc\n",
    "sub/inner.txt": "needle here\n", "sub/other.md": "no match\n", "data.json": '{"a": [1, 2], "b": null}\n',
    "page.js": "console.log(process.argv.slice(2).join('+'))\n",
}


@dataclass(frozen=True, slots=True)
class ToolRow:
    """
    Attributes:
        argv: a tool with its arguments, or a line for the shell.
        out: the whole output; None if it differs from host to host.
        has: text that the output must contain.
        needs: a tool that the host may lack.
    """

    argv: tuple[str, ...] | str
    out: str | None = None
    status: int = 0
    has: str = ""
    needs: str = ""


def _row(line: str, out: str | None = None, status: int = 0, *, has: str = "", needs: str = "") -> ToolRow:
    """A row of words, without quotes; what needs a shell is a `_line`."""
    return ToolRow(tuple(line.split(" ")), out, status, has, needs)


def _line(line: str, out: str | None = None, status: int = 0, *, has: str = "", needs: str = "") -> ToolRow:
    return ToolRow(line, out, status, has, needs)


ROWS: tuple[ToolRow, ...] = (
    _row("cat one", "a\nb\nc\n"),
    _row("head -n 2 one", "a\nb\n"),
    _row("head -c 3 one", "a\nb"),
    _row("tail -n 1 one", "c\n"),
    _row("tail -c 2 one", "c\n"),
    _line("touch made && ls made", "made\n"),
    _line("echo x | tee copy && cat copy", "x\nx\n"),
    _row("grep banana fruit", "banana\n"),
    _row("grep -i banana fruit", "Banana\nbanana\n"),
    _row("grep -n banana fruit", "4:banana\n"),
    _row("grep -c an fruit", "2\n"),
    _row("grep -v an fruit", "apple\ncherry\n"),
    _row("grep -r needle sub", "sub/inner.txt:needle here\n"),
    _row("grep -R needle sub", "sub/inner.txt:needle here\n"),
    _row("grep -l a one two", "one\ntwo\n"),
    _row("grep -e apple -e cherry fruit", "apple\ncherry\n"),
    _row("grep nothing fruit", "", 1),
    _line("seq 100000 | grep 1 >/dev/null && echo found", "found\n"),
    _row("grep [ fruit", "", 2),
    _row("grep a no-such-file", "", 2),
    _row("rg needle sub", "sub/inner.txt:needle here\n", needs="rg"),
    _row("rg -i BANANA fruit", "Banana\nbanana\n", needs="rg"),
    _row("rg -n banana fruit", "4:banana\n", needs="rg"),
    _row("rg -c an fruit", "2\n", needs="rg"),
    _row("rg -v an fruit", "apple\ncherry\n", needs="rg"),
    _row("rg -l needle sub", "sub/inner.txt\n", needs="rg"),
    _row("rg --json banana fruit", has='"line_number":4', needs="rg"),
    _row("rg -e apple -e cherry fruit", "apple\ncherry\n", needs="rg"),
    _row("rg -C 1 cherry fruit", "Banana\ncherry\nbanana\n", needs="rg"),
    _row("rg -g *.md match sub", "sub/other.md:no match\n", needs="rg"),
    _row("rg -t md match sub", "sub/other.md:no match\n", needs="rg"),
    _row("rg nothing fruit", "", 1, needs="rg"),
    _row("rg [ fruit", "", 2, needs="rg"),
    _row("find sub -name *.txt", "sub/inner.txt\n"),
    _row("find sub -type d", "sub\n"),
    _row("find sub -maxdepth 0", "sub\n"),
    _row("find no-such-folder", "", 1),
    _row("tree -L 1 sub", has="inner.txt", needs="tree"),
    _row("tree -d sub", has="0 directories", needs="tree"),
    _row("sed s/a/A/ one", "A\nb\nc\n"),
    _row("sed -e s/a/A/ -e s/b/B/ one", "A\nB\nc\n"),
    _line("cp one edited && sed -i s/a/A/ edited && cat edited", "A\nb\nc\n"),
    _row("sort fruit", has="cherry\n"),
    _row("sort -n numbers", "2\n9\n10\n10\n"),
    _row("sort -r one", "c\nb\na\n"),
    _row("sort -u -n numbers", "2\n9\n10\n"),
    _line("sort -n numbers | uniq", "2\n9\n10\n"),
    _line("sort -n numbers | uniq -c | tr -s ' '", " 1 2\n 1 9\n 2 10\n"),
    _line("sort -n numbers | uniq -d", "10\n"),
    _line("sort -n numbers | uniq -u", "2\n9\n"),
    _row("cut -c 1-2 fruit", "ap\nBa\nch\nba\n"),
    ToolRow(("cut", "-d", " ", "-f", "2", "left"), "a\nb\nc\n"),
    _line("tr a-z A-Z <one", "A\nB\nC\n"),
    _line("tr -d a <fruit", "pple\nBnn\ncherry\nbnn\n"),
    _line("echo aabb | tr -s ab", "ab\n"),
    _line("wc -l <fruit | tr -d ' '", "4\n"),
    _line("wc -w <words | tr -d ' '", "3\n"),
    _line("wc -c <one | tr -d ' '", "6\n"),
    _line("LC_ALL=C.UTF-8; export LC_ALL; printf 'é' | wc -m | tr -d ' '", "1\n"),
    ToolRow(("awk", "{ sum += $1 } END { print sum }", "numbers"), "31\n", needs="awk"),
    _row("tac one", "c\nb\na\n"),
    _line("echo abc | rev", "cba\n", needs="rev"),
    _line("nl one | tr -s ' \\t' ' '", " 1 a\n 2 b\n 3 c\n"),
    _row("paste one two", "a\ta\nb\tB\nc\tc\n"),
    _row("comm -1 -2 one two", has="a\n"),
    _line("LC_ALL=C comm -1 -3 one two 2>/dev/null", has="B\n"),
    _line("printf 'a\\nb\\n' >p; printf 'b\\nc\\n' >q; comm -1 -2 p q; comm -2 -3 p q; comm -1 -3 p q", "b\na\nc\n"),
    _row("join left right", "1 a x\n3 c z\n"),
    _row("join -1 1 -2 1 left right", "1 a x\n3 c z\n"),
    _line("printf '1,a\\n' >l; printf '1,b\\n' >r; join -t , l r", "1,a,b\n"),
    _row("fold -w 5 words", "one t\nwo th\nree\n"),
    _row("fold -s -w 5 words", "one \ntwo \nthree\n"),
    _line("printf 'a b\\ncc d\\n' | column -t", "a   b\ncc  d\n", needs="column"),
    _line("printf 'a,b\\ncc,d\\n' | column -t -s ,", "a   b\ncc  d\n", needs="column"),
    _row("expand tabs", "a       b       c\n"),
    _line("expand tabs | unexpand -a", "a\tb\tc\n"),
    _line("printf '\\001\\002readable\\003' >bin; strings bin", "readable\n", needs="strings"),
    _line("printf AB | od -An -tx1", " 41 42\n"),
    _row("jq -c .a data.json", "[1,2]\n", needs="jq"),
    ToolRow(("jq", "-r", ".a[0]|tostring", "data.json"), "1\n", needs="jq"),
    _row("jq -e .b data.json", "null\n", 1, needs="jq"),
    _row("diff one one", ""),
    _row("diff -u one two", None, 1, has="-b\n+B\n"),
    _line("cp one target; diff -u one two >change; patch -p0 target <change >/dev/null && cat target", "a\nB\nc\n",
          needs="patch"),
    _line("mkdir -p tree && cp one tree/one; printf -- '--- a/one\\n+++ b/one\\n@@ -1 +1 @@\\n-a\\n+A\\n' >p1;"
          " (cd tree && patch -p1 -i ../p1 >/dev/null); head -n 1 tree/one", "A\n", needs="patch"),
    _row("base64 one", "YQpiCmMK\n"),
    _line("base64 one | base64 -d", "a\nb\nc\n"),
    _line("printf '' | sha256sum", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  -\n"),
    _line("printf '' | sha1sum", "da39a3ee5e6b4b0d3255bfef95601890afd80709  -\n"),
    _line("printf '' | md5sum", "d41d8cd98f00b204e9800998ecf8427e  -\n"),
    _line("printf AB | xxd", "00000000: 4142                                     AB\n", needs="xxd"),
    _line("printf AB | xxd | xxd -r", "AB", needs="xxd"),
    _line("printf ABCD | xxd -c 2 | wc -l | tr -d ' '", "2\n", needs="xxd"),
    _row("ls sub", "inner.txt\nother.md\n"),
    _row("ls no-such-file", "", 2),
    _line("mkdir -p deep/er/est && ls deep/er", "est\n"),
    _line("cp -r sub sub2 && cat sub2/inner.txt", "needle here\n"),
    _line("cp one moved && mv moved elsewhere && cat elsewhere", "a\nb\nc\n"),
    _line("mkdir -p gone/down && touch gone/down/x && rm -rf gone && ls gone", "", 2),
    _line("du -sh sub | grep -c sub", "1\n"),
    _line("ln -sf one soft && ln -sf two soft && readlink soft", "two\n"),
    _row("stat -c %s one", "6\n"),
    _line("mkdir empty && rmdir empty && ls empty", "", 2),
    _line("split -l 1 one piece. && cat piece.ab", "b\n"),
    _line("split -b 2 one byte. && cat byte.ac", "c\n"),
    _row("file one", "one: ASCII text\n", needs="file"),
    _line("tar -cf all.tar sub && tar -tf all.tar | sort", "sub/\nsub/inner.txt\nsub/other.md\n"),
    _line("tar -czvf all.tgz sub >/dev/null && mkdir out && tar -xzf all.tgz -C out && cat out/sub/inner.txt",
          "needle here\n"),
    _line("cp one z; gzip -k z && gzip -d -c z.gz; rm z; gzip -d z.gz; cat z", "a\nb\nc\na\nb\nc\n"),
    _line("zip -q -r all.zip sub && unzip -q all.zip -d unzipped && cat unzipped/sub/inner.txt", "needle here\n",
          needs="zip"),
    _line("git init -q repo && cd repo && echo x >f && git status --short && git add f && git commit -q -m first"
          " && git log --format=%s:%an && echo y >f && git diff | tail -n 1", "?? f\nfirst:sandbox\n+y\n", needs="git"),
    _row("node -e console.log(6*7)", "42\n", needs="node"),
    _row("node -p 6*7", "42\n", needs="node"),
    _row("node --version", has="v", needs="node"),
    _row("node page.js a b", "a+b\n", needs="node"),
    _row("echo a b", "a b\n"),
    _row("printf %s-%d\\n x 7", "x-7\n"),
    _line("printf 'a b c' | xargs -n 1 echo", "a\nb\nc\n"),
    _line("printf 'a,b' | xargs -d , echo", "a b\n"),
    _row("basename sub/inner.txt .txt", "inner\n"),
    _row("dirname sub/inner.txt", "sub\n"),
    _row("seq -s , 3", "1,2,3\n"),
    _row("seq -w 9 10", "09\n10\n"),
    _row("sleep 0", ""),
    _row("which sh", has="/sh\n"),
    _row("whoami", "sandbox\n"),
    _row("hostname", "leeward\n"),
    _row("printenv GIVEN", "yes\n"),
    _row("date -u -d @0 +%Y", "1970\n"),
    _row("expr 6 * 7", "42\n"),
    _row("true", ""),
    _row("false", "", 1),
    _row("test -f one", ""),
    _row("test -f none", "", 1),
    _row("[ -d sub ]", ""),
    _row("sh -c exit\t3", "", 3),
    _line("bash -c 'a=(1 2 3); echo ${#a[@]}'", "3\n"),
)

#: Lines of the shell, by what they show.
SHELL: dict[str, ToolRow] = {
    "a pipe": _line("printf 'b\\na\\n' | sort | head -n 1", "a\n"),
    "output to a file": _line("echo one >f; echo two >>f; cat f", "one\ntwo\n"),
    "input from a file": _line("cat <one", "a\nb\nc\n"),
    "stderr to stdout": _line("ls no-such-file 2>&1 | grep -c no-such-file", "1\n"),
    "a here-document": _line("cat <<END\nhello $((1+1))\nEND", "hello 2\n"),
    "a here-document as it is": _line("cat <<'END'\n$HOME\nEND", "$HOME\n"),
    "and": _line("true && echo yes; false && echo no", "yes\n", 1),
    "or": _line("false || echo else", "else\n"),
    "one after the other": _line("echo a; echo b", "a\nb\n"),
    "a default": _line("echo ${V:-d}; echo ${V:-e}", "d\ne\n"),
    "a default that stays": _line("echo ${V:=d}; echo $V", "d\nd\n"),
    "a length": _line("V=four; echo ${#V}", "4\n"),
    "a substitution": _line("echo $(echo $(echo in))", "in\n"),
    "backticks": _line("echo `echo in`", "in\n"),
    "arithmetic": _line("echo $(( (2 + 3) * 4 ))", "20\n"),
    "a status": _line("false; echo $?", "1\n"),
    "how many arguments": _line("set -- a 'b c'; echo $#", "2\n"),
    "all arguments": _line("set -- a 'b c'; for i in \"$@\"; do echo \"<$i>\"; done", "<a>\n<b c>\n"),
    "its own number": _line("[ $$ -gt 1 ] && echo yes", "yes\n"),
    "a glob": _line("echo sub/*.txt; echo s?b; echo [op]ne", "sub/inner.txt\nsub\none\n"),
    "a glob that matches nothing": _line("echo *.nothing", "*.nothing\n"),
    "if": _line("if [ 1 -gt 2 ]; then echo a; elif true; then echo b; else echo c; fi", "b\n"),
    "for": _line("for i in 1 2; do echo $i; done", "1\n2\n"),
    "while": _line("i=0; while [ $i -lt 2 ]; do i=$((i+1)); echo $i; done", "1\n2\n"),
    "until": _line("i=0; until [ $i -ge 2 ]; do i=$((i+1)); done; echo $i", "2\n"),
    "break": _line("for i in 1 2 3; do [ $i = 2 ] && break; echo $i; done", "1\n"),
    "continue": _line("for i in 1 2 3; do [ $i = 2 ] && continue; echo $i; done", "1\n3\n"),
    "a function": _line("f() { echo \"got $1\"; return 4; }; f x; echo $?", "got x\n4\n"),
    "case": _line("case abc in x*) echo x;; a*|b*) echo ab;; esac", "ab\n"),
    "a sub-shell": _line("V=out; (V=in; cd /; echo $V); echo $V; pwd", "in\nout\n/workspace\n"),
    "set -e": _line("set -e; echo a; false; echo b", "a\n", 1),
    "read": _line("echo 'a b c' | { read x rest; echo \"$rest\"; }", "b c\n"),
    "trap": _line("trap 'echo bye' EXIT; echo hi", "hi\nbye\n"),
    "a syntax error": _line("if then", "", 2),
    "an unknown command": _line("no-such-command", "", 127),
    "a status of its own": _line("exit 42", "", 42),
    "in the background": _line("echo a & wait; echo b", "a\nb\n"),
    "empty standard input": _line("cat; echo end", "end\n"),
}
