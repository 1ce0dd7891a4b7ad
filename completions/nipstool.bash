# Completion of nipstool for bash, written by: nipstool completion bash
_nipstool() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} place='' files='' word
    local -a words=() verbs=()
    COMPREPLY=()
    # bash splits --option=value into three words
    if [[ $cur == '=' ]]; then cur=''; elif [[ $prev == '=' ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi

    if ((COMP_CWORD == 1)); then
        if [[ $cur == -* ]]; then words=(--version -h --help); else words=(detect-navtext eeg-pretrain filter-nbf fuse-lora probe-length prune-nsc rosetta-count); fi
    else
        case ${COMP_WORDS[1]} in
            detect-navtext) verbs=(detect build-dataset train evaluate) ;;
            eeg-pretrain) verbs=(train embed detect inspect evaluate) ;;
            filter-nbf) verbs=(run train simulate evaluate) ;;
            fuse-lora) verbs=(fuse compare inspect convert) ;;
            probe-length) verbs=(fit predict evaluate trace generate schedule) ;;
            prune-nsc) verbs=(prune plan score search) ;;
            rosetta-count) verbs=(count fit inspect filter-data) ;;
            completion) verbs=(completion) ;;
        esac
        place="${COMP_WORDS[1]} ${verbs[0]}"
        for word in "${verbs[@]}"; do
            if [[ $word == "${COMP_WORDS[2]}" ]]; then place="${COMP_WORDS[1]} $word"; fi
        done
    fi
    if ((COMP_CWORD > 2 || ${#verbs[@]} == 1)); then verbs=(); fi # no more to be offered

    case $place in
        'detect-navtext detect')
            case $prev in
                -o | --output | --poi | --ocr-models | --detector | --classifier | --vlm | --navocr | --annotate | --font | --config) files=1 ;;
                --format) words=(ndjson json csv coco yolo ros2) ;;
                --min-score | --kinds | --roi | --min-height | --fps | --font-scale | --threads) ;;
                --scale) words=(auto) ;;
                --tile) words=(auto off) ;;
                --read) words=(worth all none) ;;
                --device) words=(auto cpu cuda mps) ;;
                --progress) words=(auto plain json none) ;;
                *)
                    if [[ $cur == -* ]]; then words=(-o --output --format --min-score --all --kinds --poi --scale --tile --roi --min-height --read --fps --track --no-track --ocr-models --detector --classifier --vlm --navocr --annotate --font --font-scale --strict --json -q --quiet -v --verbose --force --device --threads --progress --config -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'detect-navtext build-dataset')
            case $prev in
                -o | --output | --poi | --ocr-models | --vlm | --config) files=1 ;;
                --synthetic | --nav-from | --other-to | --val | --place | --threads | --seed) ;;
                --device) words=(auto cpu cuda mps) ;;
                --progress) words=(auto plain json none) ;;
                *)
                    if [[ $cur == -* ]]; then words=(-o --output --synthetic --poi --nav-from --other-to --val --place --ocr-models --vlm --strict --json -q --quiet --force --device --threads --seed --progress --config -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'detect-navtext train')
            case $prev in
                -o | --output | --steps | --threads | --seed) ;;
                --card | --poi | --ocr-models | --config) files=1 ;;
                --device) words=(auto cpu cuda mps) ;;
                --progress) words=(auto plain json none) ;;
                *)
                    if [[ $cur == -* ]]; then words=(-o --output --steps --card --base --no-base --teacher --no-teacher --poi --ocr-models --json -q --quiet --force --device --threads --seed --progress --config -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'detect-navtext evaluate')
            case $prev in
                -o | --output | --images | --config) files=1 ;;
                --min-score | --place | --threads | --seed) ;;
                --progress) words=(auto plain json none) ;;
                *)
                    if [[ $cur == -* ]]; then words=(-o --output --min-score --place --images --json -q --quiet --force --threads --seed --progress --config -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'eeg-pretrain train')
            case $prev in
                -o | --output | --text-model | --config) files=1 ;;
                --preset) words=(tiny small base) ;;
                --context | --steps | --batch-tokens | --rate | --val-share | --validate-every | --patience | --without | --threads | --seed) ;;
                --split) words=(auto subject time) ;;
                --device) words=(auto cpu cuda mps) ;;
                --dtype) words=(float32 bfloat16) ;;
                --progress) words=(auto plain json none) ;;
                *)
                    if [[ $cur == -* ]]; then words=(-o --output --preset --context --text-model --steps --batch-tokens --rate --split --val-share --validate-every --patience --without --strict --resume --json -q --quiet -v --verbose --force --device --dtype --threads --seed --progress --config -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'eeg-pretrain embed')
            case $prev in
                -o | --output | --config) files=1 ;;
                --window | --hop | --threads) ;;
                --device) words=(auto cpu cuda mps) ;;
                --progress) words=(auto plain json none) ;;
                *)
                    if [[ $cur == -* ]]; then words=(-o --output --window --hop --stream --text --strict --json -q --quiet -v --verbose --force --device --threads --progress --config -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'eeg-pretrain detect')
            case $prev in
                -o | --output | --plot | --config) files=1 ;;
                --threshold | --threads) ;;
                --device) words=(auto cpu cuda mps) ;;
                --progress) words=(auto plain json none) ;;
                *)
                    if [[ $cur == -* ]]; then words=(-o --output --threshold --plot --text --strict --json -q --quiet -v --verbose --force --device --threads --progress --config -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'eeg-pretrain inspect')
            case $prev in
                --progress) words=(auto plain json none) ;;
                --config) files=1 ;;
                *)
                    if [[ $cur == -* ]]; then words=(--strict --json -q --quiet -v --verbose --progress --config -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'eeg-pretrain evaluate')
            case $prev in
                --protocol) words=(szcore neuroatlas windows) ;;
                --folds | --threads) ;;
                --device) words=(auto cpu cuda mps) ;;
                --progress) words=(auto plain json none) ;;
                --config) files=1 ;;
                *)
                    if [[ $cur == -* ]]; then words=(--protocol --probe --folds --text --strict --json -q --quiet -v --verbose --device --threads --progress --config -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
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
                    if [[ $cur == -* ]]; then words=(--domain -o --output --param --generator --init --scenarios --steps --batch --resume -q --quiet -v --verbose --json --force --device --threads --seed --progress --config -h --help)
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
        'probe-length fit')
            case $prev in
                -o | --output | --chat-template | --plot | --config) files=1 ;;
                --layers) words=(all) ;;
                --folds | --rows | --coverage | --group | --field | --split-at | --prompt-chars | --cap | --batch-tokens | --dtype | --seed | --threads) ;;
                --censored) words=(tobit drop) ;;
                --format) words=(auto) ;;
                --progress) words=(auto plain json none) ;;
                --device) words=(auto cpu cuda mps) ;;
                *)
                    if [[ $cur == -* ]]; then words=(-o --output --stats-only --layers --folds --rows --censored --coverage --resume --group --format --field --split-at --prompt-chars --chat-template --cap --skip-bad --batch-tokens --dtype --json --plot -q --quiet -v --verbose --force --seed --progress --config --device --threads -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'probe-length predict')
            case $prev in
                --model | --config | --chat-template) files=1 ;;
                --coverage | --budget | --batch-tokens | --dtype | --threads) ;;
                --format) words=(auto) ;;
                --device) words=(auto cpu cuda mps) ;;
                *)
                    if [[ $cur == -* ]]; then words=(--model --coverage --budget --skip-bad --batch-tokens -q --quiet -v --verbose --config --format --chat-template --dtype --device --threads -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'probe-length evaluate')
            case $prev in
                --model | --chat-template | --plot | --config) files=1 ;;
                --coverage | --group | --field | --split-at | --prompt-chars | --cap | --batch-tokens | --dtype | --seed | --threads) ;;
                --format) words=(auto) ;;
                --progress) words=(auto plain json none) ;;
                --device) words=(auto cpu cuda mps) ;;
                *)
                    if [[ $cur == -* ]]; then words=(--model --coverage --group --format --field --split-at --prompt-chars --chat-template --cap --skip-bad --batch-tokens --dtype --json --plot -q --quiet -v --verbose --force --seed --progress --config --device --threads -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'probe-length trace')
            case $prev in
                -o | --output | --model | --markers | --chat-template | --plot | --config) files=1 ;;
                --pattern | --window | --high-loss | --group | --field | --split-at | --prompt-chars | --cap | --batch-tokens | --dtype | --seed | --threads) ;;
                --format) words=(auto) ;;
                --progress) words=(auto plain json none) ;;
                --device) words=(auto cpu cuda mps) ;;
                *)
                    if [[ $cur == -* ]]; then words=(-o --output --model --pattern --markers --window --high-loss --group --format --field --split-at --prompt-chars --chat-template --cap --skip-bad --batch-tokens --dtype --json --plot -q --quiet -v --verbose --force --seed --progress --config --device --threads -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'probe-length generate')
            case $prev in
                -o | --output | --chat-template | --config) files=1 ;;
                -n | --n | --max-new | --temperature | --top-p | --synthetic | --number | --lengths | --batch-tokens | --dtype | --seed | --threads) ;;
                --format) words=(auto) ;;
                --progress) words=(auto plain json none) ;;
                --device) words=(auto cpu cuda mps) ;;
                *)
                    if [[ $cur == -* ]]; then words=(-o --output -n --n --max-new --temperature --top-p --synthetic --number --lengths --skip-bad --batch-tokens --format --chat-template --dtype -q --quiet -v --verbose --force --seed --progress --config --device --threads -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'probe-length schedule')
            case $prev in
                --load | --slots | --ms-per-token | --prefill-ms | --ageing | --jobs | --seed) ;;
                --plot | --config) files=1 ;;
                --progress) words=(auto plain json none) ;;
                *)
                    if [[ $cur == -* ]]; then words=(--load --slots --ms-per-token --prefill-ms --ageing --jobs --json --plot -q --quiet -v --verbose --force --seed --progress --config -h --help)
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
        'rosetta-count count')
            case $prev in
                -o | --output | --data | --sample-id | --config) files=1 ;;
                --text-field | --domain-field | --ctx | --tokens | --image-size | --sites | --dtype | --grid | --k | --min-r | --n-null | --mem | --threads | --seed) ;;
                --method) words=(auto dense spool sketch) ;;
                --device) words=(auto cpu cuda mps) ;;
                --progress) words=(auto plain json none) ;;
                *)
                    if [[ $cur == -* ]]; then words=(-o --output --data --text-field --domain-field --ctx --tokens --image-size --sites --dtype --acts --sample-id --grid --keep-special --k --min-r --n-null --mem --method --compat --resume --json -q --quiet -v --verbose --force --device --threads --seed --progress --config -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'rosetta-count fit')
            case $prev in
                --count | --seed) ;;
                --x) words=(neurons params) ;;
                -o | --output | --plot | --config) files=1 ;;
                *)
                    if [[ $cur == -* ]]; then words=(--count --x -o --output --plot --json -q --quiet -v --verbose --force --seed --config -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'rosetta-count inspect')
            case $prev in
                -o | --output | --config) files=1 ;;
                --neurons | -n | --pairs | --contexts | --threads) ;;
                --device) words=(auto cpu cuda mps) ;;
                --progress) words=(auto plain json none) ;;
                *)
                    if [[ $cur == -* ]]; then words=(-o --output --neurons -n --pairs --contexts --json -q --quiet -v --verbose --force --device --threads --progress --config -h --help)
                    else words=("${verbs[@]}") files=1; fi ;;
            esac ;;
        'rosetta-count filter-data')
            case $prev in
                --domain | --neurons | --keep | --threads) ;;
                --device) words=(auto cpu cuda mps) ;;
                --config) files=1 ;;
                *)
                    if [[ $cur == -* ]]; then words=(--domain --neurons --keep -q --quiet -v --verbose --device --threads --config -h --help)
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
