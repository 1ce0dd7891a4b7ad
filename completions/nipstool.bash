# Completion of nipstool for bash, written by: nipstool completion bash
_nipstool() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} place='' files='' word
    local -a words=() verbs=()
    COMPREPLY=()
    # bash splits --option=value into three words
    if [[ $cur == '=' ]]; then cur=''; elif [[ $prev == '=' ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi

    if ((COMP_CWORD == 1)); then
        if [[ $cur == -* ]]; then words=(--version -h --help); else words=(fuse-lora); fi
    else
        case ${COMP_WORDS[1]} in
            fuse-lora) verbs=(fuse compare inspect convert) ;;
            completion) verbs=(completion) ;;
        esac
        place="${COMP_WORDS[1]} ${verbs[0]}"
    fi
    if ((COMP_CWORD > 2)); then
        for word in "${verbs[@]}"; do
            if [[ $word == "${COMP_WORDS[2]}" ]]; then place="${COMP_WORDS[1]} $word"; fi
        done
    fi
    if ((COMP_CWORD > 2 || ${#verbs[@]} == 1)); then verbs=(); fi # no more to be offered

    case $place in
        'fuse-lora fuse')
            case $prev in
                -o | --output | --plot | --config) files=1 ;;
                --mu) words=(inf auto) ;;
                --leak | --k | --energy | -w | --weight | --rank | --energy-rank | --include | --exclude | --threads | --seed) ;;
                --modules-to-save) words=(content style) ;;
                --format) words=(kohya diffusers peft bfl) ;;
                --dtype) words=(float32 float16 bfloat16) ;;
                --device) words=(auto cpu cuda mps) ;;
                --progress) words=(auto plain json none) ;;
                *)
                    if [[ $cur == -* ]]; then words=(-o --output --mu --leak --k --energy -w --weight --rank --energy-rank --include --exclude --modules-to-save --drop-dora --allow-unknown --format --dtype --plot --json -q --quiet -v --verbose --force --device --threads --seed --progress --config -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'fuse-lora compare')
            case $prev in
                --mu) words=(inf auto) ;;
                --leak | --k | --energy | --threads | --seed) ;;
                --plot | --config) files=1 ;;
                --device) words=(auto cpu cuda mps) ;;
                --progress) words=(auto plain json none) ;;
                *)
                    if [[ $cur == -* ]]; then words=(--mu --leak --k --energy --drop-dora --allow-unknown --plot --json -q --quiet -v --verbose --force --device --threads --seed --progress --config -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'fuse-lora inspect')
            case $prev in
                --threads | --seed) ;;
                --progress) words=(auto plain json none) ;;
                --config) files=1 ;;
                *)
                    if [[ $cur == -* ]]; then words=(--json -q --quiet -v --verbose --threads --seed --progress --config -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'fuse-lora convert')
            case $prev in
                -o | --output | --config) files=1 ;;
                --format) words=(kohya diffusers peft bfl) ;;
                --rank | --energy-rank | --threads | --seed) ;;
                --dtype) words=(float32 float16 bfloat16) ;;
                --device) words=(auto cpu cuda mps) ;;
                --progress) words=(auto plain json none) ;;
                *)
                    if [[ $cur == -* ]]; then words=(-o --output --format --rank --energy-rank --drop-dora --allow-unknown --dtype --json -q --quiet -v --verbose --force --device --threads --seed --progress --config -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'completion completion')
            case $prev in
                *)
                    if [[ $cur == -* ]]; then words=(-h --help)
                    else words=("${verbs[@]}" bash zsh fish); fi ;;
            esac ;;
    esac

    for word in "${words[@]}"; do
        if [[ $word == "$cur"* ]]; then COMPREPLY+=("$word"); fi
    done
    if [[ ! $files ]]; then return; fi
    if [[ $cur == *[\\\'\"\`\$~]* ]]; then # quoted or to be expanded: readline knows how
        if ((${#COMPREPLY[@]} == 0)); then compopt -o default 2>/dev/null; fi
        return
    fi
    compopt -o filenames 2>/dev/null
    while IFS= read -r word; do COMPREPLY+=("$word"); done < <(compgen -f -- "$cur")
}
complete -F _nipstool nipstool
