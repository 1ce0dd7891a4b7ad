# Completion of nipstool for bash, written by: nipstool completion bash
_nipstool() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} place='' files='' word
    local -a words=() verbs=()
    COMPREPLY=()
    # bash splits --option=value into three words
    if [[ $cur == '=' ]]; then cur=''; elif [[ $prev == '=' ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi

    if ((COMP_CWORD == 1)); then
        if [[ $cur == -* ]]; then words=(--version -h --help); else words=(filter-nbf fuse-lora prune-nsc); fi
    else
        case ${COMP_WORDS[1]} in
            filter-nbf) verbs=(run train simulate evaluate) ;;
            fuse-lora) verbs=(fuse compare inspect convert) ;;
            prune-nsc) verbs=(prune plan score search) ;;
            completion) verbs=(completion) ;;
        esac
        place="${COMP_WORDS[1]} ${verbs[0]}"
        for word in "${verbs[@]}"; do
            if [[ $word == "${COMP_WORDS[2]}" ]]; then place="${COMP_WORDS[1]} $word"; fi
        done
    fi
    if ((COMP_CWORD > 2 || ${#verbs[@]} == 1)); then verbs=(); fi # no more to be offered

    case $place in
        'filter-nbf run')
            case $prev in
                --domain | --checkpoint | --state-in | --state-out | --plot | --config) files=1 ;;
                --param | -n | --particles | --ess | --keep | --columns | --max-dt | --forecast | --seed) ;;
                --belief) words=(nbf gaussian pf) ;;
                --regenerate) words=(ess always never) ;;
                --cov) words=(auto full shrunk diag) ;;
                --emit) words=(belief particles) ;;
                --on-error) words=(skip stop) ;;
                --device) words=(auto cpu cuda mps) ;;
                *)
                    if [[ $cur == -* ]]; then words=(--domain --param --belief --checkpoint -n --particles --paper --regenerate --ess --keep --temper --no-temper --cov --columns --max-dt --forecast --emit --state-in --state-out --on-error --plot -q --quiet -v --verbose --force --device --seed --config -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'filter-nbf train')
            case $prev in
                --domain | -o | --output | --init | --config) files=1 ;;
                --param | --scenarios | --steps | --batch | --threads | --seed) ;;
                --generator) words=(gmm flow) ;;
                --device) words=(auto cpu cuda mps) ;;
                --progress) words=(auto plain json none) ;;
                *)
                    if [[ $cur == -* ]]; then words=(--domain -o --output --param --generator --init --scenarios --steps --batch -q --quiet -v --verbose --json --force --device --threads --seed --progress --config -h --help)
                    else words=("${verbs[@]}"); fi ;;
            esac ;;
        'filter-nbf simulate')
            case $prev in
                --domain | --config) files=1 ;;
                -T | --steps | --tracks | --dt | --param | --seed) ;;
                *)
                    if [[ $cur == -* ]]; then words=(--domain -T --steps --tracks --dt --param -q --quiet -v --verbose --seed --config -h --help)
                    else words=("${verbs[@]}"); fi ;;
            esac ;;
        'filter-nbf evaluate')
            case $prev in
                --domain | --checkpoint | --plot | --config) files=1 ;;
                --param | -n | --particles | --scenarios | -T | --steps | --reference | --seed) ;;
                --belief) words=(nbf gaussian pf) ;;
                --cov) words=(auto full shrunk diag) ;;
                --dynamics) words=(auto own family held-out) ;;
                --progress) words=(auto plain json none) ;;
                *)
                    if [[ $cur == -* ]]; then words=(--domain --param --belief --checkpoint -n --particles --paper --cov --scenarios -T --steps --reference --dynamics --timing --plot --json -q --quiet -v --verbose --force --seed --progress --config -h --help)
                    else words=("${verbs[@]}"); fi ;;
            esac ;;
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
        'prune-nsc prune')
            case $prev in
                -o | --output | --plot | --config) files=1 ;;
                --params | --ratio | --flops | --kv-bytes | --ffn | --widths | --multiple-of | --keep-first | --keep-last | --tokens | --calibration | --eval | --init | --snr | --seq | --threads | --seed) ;;
                --units) words=(ffn layers) ;;
                --format) words=(hf custom) ;;
                --channels) words=(self noise random) ;;
                --spectra) words=(init weights) ;;
                --device) words=(auto cpu cuda mps) ;;
                --progress) words=(auto plain json none) ;;
                *)
                    if [[ $cur == -* ]]; then words=(-o --output --params --ratio --flops --kv-bytes --ffn --units --widths --multiple-of --keep-first --keep-last --format --channels --tokens --calibration --eval --plot --init --snr --spectra --seq --resume --json -q --quiet -v --verbose --force --device --threads --seed --progress --config -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'prune-nsc plan')
            case $prev in
                -o | --output | --config) files=1 ;;
                --params | --ratio | --flops | --kv-bytes | --ffn | --widths | --multiple-of | --keep-first | --keep-last | --init | --snr | --seq | --threads | --seed) ;;
                --units) words=(ffn layers) ;;
                --format) words=(hf custom) ;;
                --spectra) words=(init weights) ;;
                --progress) words=(auto plain json none) ;;
                *)
                    if [[ $cur == -* ]]; then words=(-o --output --params --ratio --flops --kv-bytes --ffn --units --widths --multiple-of --keep-first --keep-last --format --init --snr --spectra --seq --json -q --quiet -v --verbose --force --threads --seed --progress --config -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'prune-nsc score')
            case $prev in
                --truth | --init | --snr | --seq | --threads | --seed) ;;
                --spectra) words=(init weights) ;;
                --progress) words=(auto plain json none) ;;
                --config) files=1 ;;
                *)
                    if [[ $cur == -* ]]; then words=(--truth --init --snr --spectra --seq --json -q --quiet -v --verbose --threads --seed --progress --config -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'prune-nsc search')
            case $prev in
                --max-params | --max-flops | --max-kv-bytes | --init | --snr | --seq | --threads | --seed) ;;
                -o | --output | --config) files=1 ;;
                --progress) words=(auto plain json none) ;;
                *)
                    if [[ $cur == -* ]]; then words=(--max-params --max-flops --max-kv-bytes -o --output --init --snr --seq --json -q --quiet -v --verbose --force --threads --seed --progress --config -h --help)
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
