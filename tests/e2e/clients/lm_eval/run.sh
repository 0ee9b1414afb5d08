#!/bin/sh
# lm-evaluation-harness against a running server; see ../lm_eval.md.
#   run.sh URL MODEL TOKENIZER [BATCH]
set -eu
cd "$(dirname "$0")"
url=$1 model=$2 tokenizer=$3 batch=${4:-4}
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TRANSFORMERS_OFFLINE=1
exec lm_eval --model local-completions --include_path . --batch_size "$batch" \
  --tasks edgewise_facts,edgewise_going_on \
  --model_args "model=$model,base_url=$url/v1/completions,tokenizer=$tokenizer,tokenizer_backend=huggingface,max_length=2048"
