"""Which models of transformers and torchvision `tiebreak.capture` takes: small random ones, beside those of `captured_gradients.py`.

    python3 -m venv venv && venv/bin/pip install ./python transformers torchvision
    venv/bin/python benches/captured_models.py [--only NAME] [--gradients] [--write]

Each model is captured, or refused by operators that are named. `capture` may end with nothing else. With --gradients the gradient of one batch of each
captured model is compared with PyTorch's in fp64, as `captured_gradients.py` does. The exit status is 1 if an error with four digits is more than 4
times that of PyTorch in fp32. --write puts the result into docs/NUMERICS.md.
"""

import argparse
import contextlib
import os
import re
import sys
import tempfile
import warnings
from functools import partial

import captured_gradients as gradients
import tiebreak
import torch
from captured_gradients import CLASSES, GEMMA, GPT2, GROUPED, LLAMA, POSITIONS, SAMPLES, TOKENS, VIT, images, of_torchvision, of_transformers, texts, tokens

COMMAND = "venv/bin/python benches/captured_models.py"
BERT = {**LLAMA, "num_labels": CLASSES}
# Positions of these are counted from behind the id of padding on, over ids that are no padding.
ROBERTA = {**BERT, "pad_token_id": 1, "bos_token_id": 0, "max_position_embeddings": POSITIONS + 2}
OWN_HEADS = {**GROUPED, "head_dim": 8}
HEADS = {"vocab_size": TOKENS, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
NEO = {"vocab_size": TOKENS, "max_position_embeddings": POSITIONS, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 4,
       "attention_types": [[["global", "local"], 1]], "bos_token_id": 1, "eos_token_id": 2}
BART = {"vocab_size": TOKENS, "d_model": 32, "decoder_layers": 2, "encoder_layers": 2, "decoder_attention_heads": 4, "encoder_attention_heads": 4,
        "decoder_ffn_dim": 48, "encoder_ffn_dim": 48, "max_position_embeddings": POSITIONS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "decoder_start_token_id": 2}
EXPERTS = {**GROUPED, "num_local_experts": 2, "num_experts": 2, "num_experts_per_tok": 1}
XLM = {"vocab_size": TOKENS, "n_words": TOKENS, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "max_position_embeddings": POSITIONS, "num_labels": CLASSES}
SWIN = {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4, "num_labels": CLASSES}
CONVNEXT = {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2, "patch_size": 2, "num_labels": CLASSES}
TOWERS = {"vision_config": {**VIT, "projection_dim": 32}, "text_config": {**LLAMA, "num_hidden_layers": 1}, "num_labels": CLASSES}
PYRAMID = {"image_size": 32, "hidden_sizes": [16] * 4, "depths": [1] * 4, "num_attention_heads": [1, 2, 2, 2], "num_labels": CLASSES}
WAVES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "conv_dim": [16, 16], "conv_stride": [2, 2],
         "conv_kernel": [3, 3], "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "num_labels": CLASSES,
         "classifier_proj_size": 16, "mask_time_prob": 0.0, "layerdrop": 0.0, "apply_spec_augment": False}


def scaled(kind, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


def decoder(kind, sizes=GROUPED, head="ForCausalLM", **more):
    return of_transformers(kind, head, sizes, **more), tokens


def encoder(kind, sizes=BERT, head="ForSequenceClassification", **more):
    return of_transformers(kind, head, sizes, **more), texts


def seer(kind, sizes=VIT, side=16, **more):
    return of_transformers(kind, "ForImageClassification", sizes, **more), partial(images, side)


def numbers(kind, sizes, *shape, head="ForSequenceClassification"):
    return of_transformers(kind, head, sizes), lambda: (torch.randn(SAMPLES, *shape), torch.randint(0, CLASSES, (SAMPLES,)))


def vision(module, name, side=32, **more):
    return of_torchvision(module, name, **more), partial(images, side)


def blocks_of_convnext(module):
    return [module.CNBlockConfig(16, 32, 1), module.CNBlockConfig(32, None, 1)]


SWIN_TORCHVISION = {"patch_size": [2, 2], "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": [4, 4], "stochastic_depth_prob": 0.0}
DECODERS = {
    "GPT-Neo": decoder("GPTNeo", NEO),
    "GPT-J": decoder("GPTJ", HEADS, n_positions=POSITIONS, rotary_dim=4),
    "CodeGen": decoder("CodeGen", HEADS, n_positions=POSITIONS, n_ctx=POSITIONS, rotary_dim=4),
    "GPT": decoder("OpenAIGPT", HEADS, "LMHeadModel", n_positions=POSITIONS),
    "CTRL": decoder("CTRL", HEADS, "LMHeadModel", n_positions=POSITIONS, dff=48),
    "GLM": decoder("Glm", OWN_HEADS),
    "GLM-4": decoder("Glm4", OWN_HEADS),
    "BLOOM": decoder("Bloom", {"vocab_size": TOKENS, "hidden_size": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}),
    "Falcon": decoder("Falcon", LLAMA, multi_query=True),
    "Falcon, alibi": decoder("Falcon", LLAMA, alibi=True),
    "MPT": decoder("Mpt", {"vocab_size": TOKENS, "d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": POSITIONS, "expansion_ratio": 2}),
    "XGLM": decoder("XGLM", {"vocab_size": TOKENS, "d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4,
                             "max_position_embeddings": POSITIONS, "pad_token_id": 0}),
    "Persimmon": decoder("Persimmon", LLAMA),
    "StableLM": decoder("StableLm"),
    "Cohere": decoder("Cohere"),
    "Cohere 2": decoder("Cohere2", OWN_HEADS, sliding_window=64),
    "Nemotron": decoder("Nemotron", OWN_HEADS),
    "Helium": decoder("Helium", OWN_HEADS),
    "ERNIE 4.5": decoder("Ernie4_5", OWN_HEADS),
    "Hunyuan": decoder("HunYuanDenseV1", OWN_HEADS),
    "Ministral": decoder("Ministral", OWN_HEADS),
    "NanoChat": decoder("NanoChat"),
    "VaultGemma": decoder("VaultGemma", OWN_HEADS, attn_logit_softcapping=None),
    "ModernBERT's decoder": decoder("ModernBertDecoder", LLAMA, local_attention=64),
    "Mistral, a window": decoder("Mistral", sliding_window=4),
    "Gemma 3, a window": decoder("Gemma3Text", GEMMA, sliding_window=4),
    "Gemma 2, capped scores": decoder("Gemma2", GEMMA),
    "Llama, scaled frequencies": decoder("Llama", **scaled("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)),
    "Llama, linear frequencies": decoder("Llama", **scaled("linear", factor=2.0)),
    "Apertus": decoder("Apertus"),
    "Doge": decoder("Doge", sliding_window=None),
    "DiffLlama": decoder("DiffLlama"),
    "Mixtral": decoder("Mixtral", EXPERTS),
    "Qwen2-MoE": decoder("Qwen2Moe", EXPERTS, moe_intermediate_size=16, shared_expert_intermediate_size=16),
    "GPT-OSS": decoder("GptOss", EXPERTS, head_dim=8),
    "RWKV": decoder("Rwkv", {"vocab_size": TOKENS, "context_length": POSITIONS, "hidden_size": 32, "attention_hidden_size": 32, "intermediate_size": 48,
                             "num_hidden_layers": 2}),
    "Mamba": decoder("Mamba", {"vocab_size": TOKENS, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2}),
    "RecurrentGemma": decoder("RecurrentGemma", OWN_HEADS, lru_width=32, attention_window_size=64, num_hidden_layers=3),
    "BART's decoder": decoder("Bart", BART),
    "mBART's decoder": decoder("MBart", BART),
    "PLBART's decoder": decoder("PLBart", BART),
    "Pegasus' decoder": decoder("Pegasus", BART),
    "Marian's decoder": decoder("Marian", BART),
    "Blenderbot's decoder": decoder("Blenderbot", BART),
    "small Blenderbot's decoder": decoder("BlenderbotSmall", BART),
    "TrOCR's decoder": decoder("TrOCR", BART),
    "RoBERTa's decoder": decoder("Roberta", ROBERTA, is_decoder=True),
    "RoFormer's decoder": decoder("RoFormer", LLAMA, is_decoder=True),
    "XLNet": decoder("XLNet", {"vocab_size": TOKENS, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48}, "LMHeadModel"),
}
ENCODERS = {
    "RoBERTa": encoder("Roberta", ROBERTA),
    "XLM-RoBERTa": encoder("XLMRoberta", ROBERTA),
    "CamemBERT": encoder("Camembert", ROBERTA),
    "RoBERTa with norms before": encoder("RobertaPreLayerNorm", ROBERTA),
    "MPNet": encoder("MPNet", ROBERTA),
    "I-BERT": encoder("IBert", ROBERTA),
    "ESM": encoder("Esm", ROBERTA, position_embedding_type="rotary", mask_token_id=5),
    "Longformer": encoder("Longformer", ROBERTA, attention_window=4),
    "RoFormer": encoder("RoFormer", embedding_size=32),
    "ConvBERT": encoder("ConvBert", embedding_size=32, conv_kernel_size=3),
    "DeBERTa": encoder("Deberta", relative_attention=True, pos_att_type=["c2p", "p2c"]),
    "DeBERTa v2": encoder("DebertaV2"),
    "FNet": encoder("FNet"),
    "MobileBERT": encoder("MobileBert", embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16),
    "SqueezeBERT": encoder("SqueezeBert", embedding_size=32),
    "RemBERT": encoder("RemBert", input_embedding_size=16, output_embedding_size=16),
    "Nyströmformer": encoder("Nystromformer", num_landmarks=4, segment_means_seq_len=POSITIONS),
    "LayoutLM": encoder("LayoutLM"),
    "BigBird": encoder("BigBird", attention_type="original_full"),
    "XLM": encoder("XLM", XLM),
    "FlauBERT": encoder("Flaubert", XLM),
    "Funnel": encoder("Funnel", {"vocab_size": TOKENS, "block_sizes": [1, 1], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48, "num_labels": CLASSES}),
    "CANINE": encoder("Canine"),
    "Llama, classes": encoder("Llama", GROUPED, num_labels=CLASSES),
    "GPT-2, classes": encoder("GPT2", GPT2, num_labels=CLASSES, pad_token_id=0),
}
VISION = {
    "DeiT": seer("DeiT"),
    "BEiT": seer("Beit"),
    "data2vec": seer("Data2VecVision"),
    "DINOv2": seer("Dinov2"),
    "DINOv2 with registers": seer("Dinov2WithRegisters"),
    "CLIP": seer("CLIP", TOWERS),
    "SigLIP": seer("Siglip", TOWERS),
    "Swin": seer("Swin", SWIN),
    "Swin v2": seer("Swinv2", SWIN),
    "ConvNeXt": seer("ConvNext", CONVNEXT),
    "ConvNeXt v2": seer("ConvNextV2", CONVNEXT),
    "FocalNet": seer("FocalNet", {**SWIN, "hidden_sizes": [16, 32], "focal_levels": [1, 1], "focal_windows": [3, 3]}),
    "BiT": seer("Bit", {"embedding_size": 8, "hidden_sizes": [32, 64], "depths": [1, 1], "num_groups": 4, "num_labels": CLASSES}, 32),
    "LeViT": seer("Levit", {"image_size": 32, "hidden_sizes": [16] * 3, "num_attention_heads": [2] * 3, "depths": [1] * 3, "key_dim": [8] * 3,
                            "num_labels": CLASSES}, 32),
    "MobileViT": seer("MobileViT", {"hidden_sizes": [16] * 3, "neck_hidden_sizes": [8, 8, 16, 16, 16, 16, 32], "num_attention_heads": 2, "image_size": 64,
                                    "num_labels": CLASSES}, 64),
    "MobileViT v2": seer("MobileViTV2", {"width_multiplier": 0.25, "image_size": 64, "num_labels": CLASSES}, 64),
    "PoolFormer": seer("PoolFormer", PYRAMID, 32),
    "PVT": seer("Pvt", PYRAMID, 32),
    "PVT v2": seer("PvtV2", PYRAMID, 32),
    "SegFormer": seer("Segformer", PYRAMID, 32),
    "SwiftFormer": seer("SwiftFormer", {"image_size": 64, "embed_dims": [8, 8, 16, 16], "depths": [1] * 4, "num_labels": CLASSES}, 64),
    "Hiera": seer("Hiera", {"image_size": [16, 16], "patch_size": [3, 3], "patch_stride": [2, 2], "patch_padding": [1, 1], "embed_dim": 16, "depths": [1, 1],
                            "num_heads": [1, 2], "query_stride": [2, 2], "num_query_pool": 1, "masked_unit_size": [2, 2], "num_labels": CLASSES}),
    "TextNet": seer("TextNet", {"num_labels": CLASSES, "image_size": [32, 32]}, 32),
    "HGNet v2": seer("HGNetV2", {"embedding_size": 8, "num_labels": CLASSES}, 32),
}
AUDIO = {
    "AST": numbers("AST", {**{key: value for key, value in VIT.items() if key != "image_size"}, "max_length": 16, "num_mel_bins": 16, "frequency_stride": 4,
                           "time_stride": 4}, 16, 16, head="ForAudioClassification"),
    "wav2vec 2.0": numbers("Wav2Vec2", WAVES, 64),
    "HuBERT": numbers("Hubert", WAVES, 64),
    "WavLM": numbers("WavLM", WAVES, 64),
    "data2vec of audio": numbers("Data2VecAudio", WAVES, 64),
    "Whisper": numbers("Whisper", {**BART, "num_mel_bins": 8, "max_source_positions": 12, "classifier_proj_size": 16, "num_labels": CLASSES}, 8, 24,
                       head="ForAudioClassification"),
}
TORCHVISION = {
    "AlexNet": vision("alexnet", "alexnet", 64, dropout=0.0),
    "VGG": vision("vgg", "vgg11_bn", dropout=0.0),
    "DenseNet": vision("densenet", "DenseNet", block_config=(1, 2, 1, 1), num_init_features=8, growth_rate=4, bn_size=2),
    "SqueezeNet": vision("squeezenet", "squeezenet1_1", 64, dropout=0.0),
    "GoogLeNet": vision("googlenet", "googlenet", 64, aux_logits=False, init_weights=False, dropout=0.0),
    "Inception v3": vision("inception", "inception_v3", 96, aux_logits=False, init_weights=False, dropout=0.0),
    "ShuffleNet v2": vision("shufflenetv2", "shufflenet_v2_x0_5"),
    "ConvNeXt (torchvision)": vision("convnext", "ConvNeXt", block_setting=blocks_of_convnext),
    "Swin (torchvision)": vision("swin_transformer", "SwinTransformer", **SWIN_TORCHVISION),
    "Swin v2 (torchvision)": vision("swin_transformer", "SwinTransformer", **SWIN_TORCHVISION, block=lambda module: module.SwinTransformerBlockV2,
                                    downsample_layer=lambda module: module.PatchMergingV2),
    "MaxViT": vision("maxvit", "MaxVit", input_size=(32, 32), stem_channels=8, partition_size=2, block_channels=[8, 16], block_layers=[1, 1], head_dim=4,
                     stochastic_depth_prob=0.0),
    "EfficientNet v2, stochastic depth": vision("efficientnet", "efficientnet_v2_s"),
}
KINDS = {"decoders of transformers": DECODERS, "encoders of texts": ENCODERS, "models of images": VISION, "models of sounds": AUDIO, "models of torchvision": TORCHVISION}
MODELS = {name: model for models in KINDS.values() for name, model in models.items()}
# Their batch normalisations make no gradient of fp32 a yardstick at this size, or the model is large: these are captured alone.
NOT_COMPARED = ("VGG", "AlexNet", "ShuffleNet v2")


def refused(name):
    """The refusals of a model: none if it is captured. Any other exception than `CaptureError` ends the command."""
    make, batch = MODELS[name]
    model, example = gradients.made(name, make), batch()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        try:
            tiebreak.capture(model, gradients.loss_of, torch.optim.SGD(model.parameters(), lr=1e-3), example, out="captured")
        except tiebreak.CaptureError as error:
            return error.refused
    return []


def compared(name):
    """How many times PyTorch's error in fp32 that of a captured model is, with four digits: of the whole gradient, and the most of a tensor."""
    make, batch = MODELS[name]
    # RoBERTa's id of padding, 1, may be in no text.
    unpadded = lambda: (lambda ids, labels: (ids.clamp(min=2), labels))(*batch())  # noqa: E731
    gradients.MODELS[name] = make, unpadded if batch is texts else batch
    return gradients.multiples(gradients.measured(name, count=1)[1], "d = 4")


TEXT = """## Which models are captured

{tried} more models of transformers and torchvision, of small configurations and random weights: {captured} are captured, and
{refused} refused. The command ends with an error if `capture` ends with anything else.{compared}

| kind | tried | captured |
|---|---|---|
{kinds}

| refused | by the operators |
|---|---|
{operators}"""


COMPARED = """ Gradients of one batch of {count} captured models
are at most {whole:.2f} times as far from PyTorch's fp64 as its fp32 with d = 4, and those of a tensor {tensor:.2f} times."""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", help="a model's name; may be given several times")
    parser.add_argument("--gradients", action="store_true", help="compare the gradients of captured models with PyTorch's")
    parser.add_argument("--write", action="store_true", help="write the result into docs/NUMERICS.md")
    options = parser.parse_args()
    if unknown := set(options.only or ()) - set(MODELS):
        parser.error(f"no model is named {', '.join(unknown)}; there are {'; '.join(MODELS)}")
    warnings.simplefilter("ignore")
    names, why, times = options.only or list(MODELS), {}, {}
    for name in names:
        why[name] = refused(name)
        if options.gradients and not why[name] and name not in NOT_COMPARED:
            times[name] = compared(name)
        found = "; ".join(why[name])[:300] or "captured" + (", {:.2f} and {:.2f} times fp32".format(*times[name]) if name in times else "")
        print(f"{name}: {found}", flush=True)
    failed = [name for name, both in times.items() if not max(both) <= gradients.BAR]
    if options.write:
        kinds = [f"| {kind} | {len(models)} | {sum(not why[name] for name in models)} |" for kind, models in KINDS.items()]
        shown = lambda lines: ", ".join(dict.fromkeys(f"`{found[1]}`" if (found := re.match(r"aten\.(\w+)", line)) else line.partition(":")[0] for line in lines))  # noqa: E731
        operators = [f"| {name} | {shown(lines)} |" for name, lines in why.items() if lines]
        counts = {"tried": len(names), "captured": len(names) - len(operators), "refused": len(operators), "compared": ""}
        if times:
            whole, tensor = (max(both[place] for both in times.values()) for place in (0, 1))
            counts["compared"] = COMPARED.format(count=len(times), whole=whole, tensor=tensor)
        made_by = f"{COMMAND}{' --gradients' if options.gradients else ''} --write"
        gradients.write(TEXT.format(**counts, kinds="\n".join(kinds), operators="\n".join(operators)), made_by)
    sys.exit(f"more than {gradients.BAR:g} times PyTorch's fp32: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
