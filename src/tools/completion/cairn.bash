# Completes the cairn command in bash: subcommands and options as `cairn --help` lists them, and the steps of a root.
_cairn_steps() {
  local root=${1/#\~\//$HOME/}
  "$command" ls "$root" 2>/dev/null | awk 'NR > 1 { print $1 }'
}

_cairn() {
  local command=$1 current=$2 previous=$3 subcommand=${COMP_WORDS[1]}
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    local names
    names=$("$command" --help | sed -n '/^Subcommands:/,$ s/^  \([a-z][a-z]*\) .*/\1/p')
    mapfile -t COMPREPLY < <(compgen -W "$names --help --version" -- "$current")
    return
  fi
  case $previous in
    --out | --model-folder | --config-from | --profile | --data) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$current"); return ;;
    --step) mapfile -t COMPREPLY < <(compgen -W "$(_cairn_steps "${COMP_WORDS[2]}")" -- "$current"); return ;;
    --device) mapfile -t COMPREPLY < <(compgen -W "host cuda" -- "$current"); return ;;
    --means) mapfile -t COMPREPLY < <(compgen -W "line counter rate" -- "$current"); return ;;
    --)
      [ "$subcommand" != profile ] || { mapfile -t COMPREPLY < <(compgen -c -- "$current"); return; }
      ;;
  esac
  if [[ $current == -* ]]; then
    local options
    options=$("$command" "$subcommand" --help | sed -n 's/^  \(-h,\)\{0,1\}\(--[a-z-]*\).*/\2/p')
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
    return
  fi
  case $subcommand in
    show | verify | export | diff | rm | pin | unpin)
      if [ "$COMP_CWORD" -gt 2 ]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_cairn_steps "${COMP_WORDS[2]}")" -- "$current")
        [ "$subcommand/$COMP_CWORD" = diff/3 ] || return  # The only one that may be another path.
      fi
      ;;
  esac
  compopt -o filenames 2>/dev/null
  case $subcommand in
    ls | gc | mirror | fetch | rm | pin | unpin | tune | doctor) mapfile -t COMPREPLY < <(compgen -d -- "$current") ;;
    *) mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -f -- "$current") ;;
  esac
}

complete -F _cairn cairn
