"""A Hugging Face model of no size, of random weights, with a tokenizer of bytes: nothing is fetched."""

from __future__ import annotations

from pathlib import Path

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"


def tiny_model(place: Path) -> Path:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers  # pyright: ignore[reportMissingImports]
    from transformers import (  # pyright: ignore[reportMissingImports]
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
    )

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    spelled = Tokenizer(models.BPE({token: at for at, token in enumerate(["<pad>", "<end>", *alphabet])}, []))
    spelled.pre_tokenizer, spelled.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=spelled, pad_token="<pad>", eos_token="<end>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(place)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
            num_attention_heads=2, max_position_embeddings=4096, pad_token_id=0, eos_token_id=1, bos_token_id=1,
            initializer_range=0.3,  # else its head, which adapters leave alone, could say nothing
        )
    ).save_pretrained(place)  # fmt: skip
    return place
