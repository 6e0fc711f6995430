"""Scripts with which bash, zsh and fish complete ``gcodec``.

The scripts of click end a word at a colon, an equals sign or a comma, or append a space to it.
Codec specs contain all three characters.
"""

from __future__ import annotations

import os
from typing import Any

from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

_BASH = r"""
%(complete_func)s() {
    local type value response
    response=$(env COMP_LINE="${COMP_LINE:0:$COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" \
        %(complete_var)s=bash_complete "$1")
    COMPREPLY=()
    while IFS=, read -r type value; do
        case $type in
            plain)
                [[ $value == *[:=] ]] && compopt -o nospace
                [[ $value == *[!A-Za-z0-9_.,:=/-]* ]] && printf -v value %%q "$value"
                COMPREPLY+=("$value") ;;
            file) compopt -o default ;;
            dir) compopt -o dirnames ;;
        esac
    done <<< "$response"
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

_ZSH = r"""#compdef %(prog_name)s
%(complete_func)s() {
    local type key descr item
    local -a response closed opened
    (( ! $+commands[%(prog_name)s] )) && return 1
    response=("${(@f)$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) \
        %(complete_var)s=zsh_complete %(prog_name)s)}")
    for type key descr in ${response}; do
        case $type in
            plain)
                item=${key//:/\\:}
                [[ $descr != _ ]] && item+=":$descr"
                if [[ $key == *[:=] ]]; then opened+=("$item"); else closed+=("$item"); fi ;;
            file) _path_files -f ;;
            dir) _path_files -/ ;;
        esac
    done
    (( $#closed )) && _describe -V closed closed -U
    (( $#opened )) && _describe -V opened opened -U -S ''
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""

_FISH = r"""
function %(complete_func)s
    for completion in (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp) \
            COMP_CWORD=(commandline -t) %(prog_name)s)
        set -l parts (string split -m 1 "," $completion)
        switch $parts[1]
            case dir
                __fish_complete_directories $parts[2]
            case file
                __fish_complete_path $parts[2]
            case plain
                echo $parts[2]
        end
    end
end
complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


@add_completion_class
class Bash(BashComplete):
    """Bash, which passes the line, and replaces only the text after the last word break."""

    source_template = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the complete words of the line, and the incomplete one."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)
        incomplete = "" if not words or line[-1:].isspace() else words.pop()
        self._incomplete = incomplete
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """Remove the part of the word that bash keeps."""
        breaks = set(os.environ.get("COMP_WORDBREAKS", "")) & set(":=")
        word = self._incomplete
        if word.startswith("-") and "=" in word:
            word = word.partition("=")[2]  # click completes the value alone
        kept = word[: 1 + max((word.rfind(mark) for mark in breaks), default=-1)]
        return f"{item.type},{item.value.removeprefix(kept)}"


@add_completion_class
class Zsh(ZshComplete):
    """Zsh."""

    source_template = _ZSH

    def format_completion(self, item: CompletionItem[Any]) -> str:
        """Return three lines: type, value and help."""
        return f"{item.type}\n{item.value}\n{item.help or '_'}"


@add_completion_class
class Fish(FishComplete):
    """Fish."""

    source_template = _FISH
