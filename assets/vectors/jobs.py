"""The jobs whose steps `steps.py` computes: small models of every kind, with every key that decides bits of a step."""

JOBS = {
    "gpt, gelu by tanh, tied, dropout, two micro-batches, AdamW, clip, warm-up and cosine": """steps = 5
clip_norm = 0.3
model = { kind = "gpt", vocabulary = 11, context = 5, layers = 2, heads = 2, width = 6, dropout = 0.1 }
data = { kind = "bytes", path = "none" }
optimizer = { kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }
schedule = { peak = 1e-2, warmup = 2, floor = 1e-3 }
batch = { micro_batch = 2, micro_batches = 2 }
""",
    "gpt, gelu by erf, not tied, three micro-batches, two and three digits": """steps = 3
model = { kind = "gpt", vocabulary = 7, context = 4, layers = 1, heads = 1, width = 3, gelu = "erf", tied = false, init_std = 0.3 }
data = { kind = "bytes", path = "none" }
optimizer = { kind = "adamw", beta1 = 0.8, beta2 = 0.99, epsilon = 1e-6, weight_decay = 0.0 }
schedule = { peak = 0.03, floor = 0.01 }
batch = { micro_batch = 1, micro_batches = 3 }
digits = { all = 2, class = { head_dx = { digits_a = 3, digits_b = 2 }, scores_dq = { digits_a = 3, digits_b = 2 }, scores_dk = { digits_a = 3, digits_b = 2 }, values = { digits_a = 3, digits_b = 2 }, values_dv = { digits_a = 2, digits_b = 3 } } }
""",
    "mlp, dropout, SGD with momentum, a product of two blocks, four digits": """steps = 3
clip_norm = 0.5
model = { kind = "mlp", inputs = 70, hidden = [9, 5], classes = 4, dropout = 0.3 }
data = { kind = "idx", images = "none", labels = "none" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 1e-3 }
schedule = { peak = 0.1, warmup = 3 }
batch = { micro_batch = 3 }
digits = { class = { linear = { digits_a = 2, digits_b = 3, block = 64 }, head = { digits_a = 4, digits_b = 4 } } }
""",
    "resnet, one plane, SGD with momentum": """steps = 3
clip_norm = 1.0
model = { kind = "resnet", height = 5, width = 6, planes = 1, stages = [3, 4], blocks = 2, classes = 3 }
data = { kind = "idx", images = "none", labels = "none" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 5e-4 }
schedule = { peak = 0.05 }
batch = { micro_batch = 2, micro_batches = 2 }
""",
    "resnet, three planes": """steps = 3
model = { kind = "resnet", height = 32, width = 32, planes = 3, stages = [2, 3], blocks = 1, classes = 10 }
data = { kind = "cifar10", path = "none" }
optimizer = { kind = "sgd", momentum = 0.5, weight_decay = 0.0 }
schedule = { peak = 0.05, floor = 0.0 }
batch = { micro_batch = 1 }
""",
    "resnet with batch normalisation, two micro-batches": """steps = 3
clip_norm = 0.5
model = { kind = "resnet", height = 6, width = 5, planes = 1, stages = [3, 4], blocks = 1, classes = 3, norm = "batch", norm_epsilon = 1e-3 }
data = { kind = "idx", images = "none", labels = "none" }
optimizer = { kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }
schedule = { peak = 0.05 }
batch = { micro_batch = 2, micro_batches = 2 }
""",
    "mlp, Adam with coupled decay, groups, a line": """steps = 4
clip_norm = 0.5
model = { kind = "mlp", inputs = 6, hidden = [5, 4], classes = 3 }
data = { kind = "idx", images = "none", labels = "none" }
optimizer = { kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1, decay = "coupled", group = [
    { parameters = ["layer1.weight"], weight_decay = 0.0, rate_factor = 0.5 },
    { parameters = ["layer1.*", "layer2.bias"], weight_decay = 0.3 } ] }
schedule = { peak = 0.05, warmup = 1, kind = "linear" }
batch = { micro_batch = 2 }
""",
    "mlp, SGD with coupled decay, steps": """steps = 3
model = { kind = "mlp", inputs = 6, hidden = [5], classes = 3 }
data = { kind = "idx", images = "none", labels = "none" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.1, decay = "coupled" }
schedule = { peak = 0.05, kind = "step", every = 2, gamma = 0.1 }
batch = { micro_batch = 2, micro_batches = 2 }
""",
    "mlp, SGD, groups with decoupled decay, milestones": """steps = 3
model = { kind = "mlp", inputs = 6, hidden = [5], classes = 3 }
data = { kind = "idx", images = "none", labels = "none" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.1, group = [{ parameters = ["*.bias"], weight_decay = 0.2, rate_factor = 2 }] }
schedule = { peak = 0.05, kind = "step", milestones = [1, 2], gamma = 0.3 }
batch = { micro_batch = 2 }
""",
    "resnet as torchvision's: bottlenecks, normalised after convolutions, ImageNet's stem": """steps = 3
model = { kind = "resnet", height = 13, width = 12, planes = 1, stages = [2, 3], blocks = [1, 2], classes = 3, norm = "batch", block = "bottleneck", order = "post", stem = "imagenet" }
data = { kind = "idx", images = "none", labels = "none" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 5e-4 }
schedule = { peak = 0.05 }
batch = { micro_batch = 2, micro_batches = 2 }
loss = { smoothing = 0.1 }
""",
    "resnet, bottlenecks with groups, normalised before convolutions, two digits": """steps = 3
model = { kind = "resnet", height = 6, width = 5, planes = 1, stages = [2, 3], blocks = 1, classes = 3, block = "bottleneck", groups = 2, width_per_group = 40 }
data = { kind = "idx", images = "none", labels = "none" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
schedule = { peak = 0.05 }
batch = { micro_batch = 2 }
digits = { all = 2 }
""",
    "vgg11, dropout": """steps = 3
model = { kind = "vgg11", height = 32, width = 35, planes = 1, channels = [1, 2, 2, 2, 3, 3, 3, 3], classifier = 5, classes = 3, dropout = 0.25 }
data = { kind = "idx", images = "none", labels = "none" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 5e-4 }
schedule = { peak = 0.05 }
batch = { micro_batch = 2 }
""",
    "vgg11 with batch normalisation": """steps = 3
model = { kind = "vgg11", height = 64, width = 32, planes = 1, channels = [1, 1, 2, 1, 2, 1, 2, 3], classifier = 4, classes = 3, dropout = 0.0, norm = "batch" }
data = { kind = "idx", images = "none", labels = "none" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
schedule = { peak = 0.05 }
batch = { micro_batch = 2 }
""",
    "logistic regression": """steps = 3
model = { kind = "mlp", inputs = 12, hidden = [], classes = 4 }
data = { kind = "idx", images = "none", labels = "none" }
optimizer = { kind = "sgd", momentum = 0.0, weight_decay = 0.0 }
schedule = { peak = 0.1 }
batch = { micro_batch = 3 }
""",
    "gpt, a label to ignore, smoothed targets, two micro-batches": """steps = 3
model = { kind = "gpt", vocabulary = 4, context = 5, layers = 1, heads = 1, width = 4 }
data = { kind = "bytes", path = "none" }
optimizer = { kind = "sgd", momentum = 0.0, weight_decay = 0.0 }
schedule = { peak = 0.1 }
batch = { micro_batch = 2, micro_batches = 2 }
loss = { smoothing = 0.2, ignore = 1 }
""",
    "resnet, convolutions of version 2, a product of blocks": """steps = 3
clip_norm = 1.0
model = { kind = "resnet", height = 5, width = 7, planes = 1, stages = [3, 4], blocks = 1, classes = 3, convolution = 2 }
data = { kind = "idx", images = "none", labels = "none" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 5e-4 }
schedule = { peak = 0.05 }
batch = { micro_batch = 3, micro_batches = 2 }
digits = { class = { conv_dw = { digits_a = 3, digits_b = 2, block = 64 } } }
""",
    "resnet, pixels normalised by ImageNet's constants": """steps = 3
model = { kind = "resnet", height = 4, width = 5, planes = 3, stages = [2], blocks = 1, classes = 3, normalize = "imagenet" }
data = { kind = "arrays", inputs = "none.npy", labels = "none.npy", dtype = "u8" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
schedule = { peak = 0.05 }
batch = { micro_batch = 2, micro_batches = 2 }
""",
    "mlp, pixels of two planes normalised by constants of its own": """steps = 3
model = { kind = "mlp", inputs = 6, hidden = [5], classes = 3, image_mean = [0.1, 0.7], image_std = [0.3, 3e-3] }
data = { kind = "idx", images = "none", labels = "none" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
schedule = { peak = 0.05 }
batch = { micro_batch = 2 }
""",
    "vgg11, pixels normalised by MNIST's constants": """steps = 3
model = { kind = "vgg11", height = 32, width = 32, planes = 1, channels = [1, 1, 1, 1, 1, 1, 1, 1], classifier = 3, classes = 2, dropout = 0.0, normalize = "mnist" }
data = { kind = "idx", images = "none", labels = "none" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
schedule = { peak = 0.05 }
batch = { micro_batch = 1 }
""",
    "logistic regression, pixels normalised by CIFAR-10's constants": """steps = 3
model = { kind = "mlp", inputs = 12, hidden = [], classes = 4, normalize = "cifar10" }
data = { kind = "arrays", inputs = "none.npy", labels = "none.npy", dtype = "u8" }
optimizer = { kind = "sgd", momentum = 0.0, weight_decay = 0.0 }
schedule = { peak = 0.1 }
batch = { micro_batch = 3 }
""",
    "llama, two heads of queries for a head of keys, tied, two micro-batches, AdamW": """steps = 3
clip_norm = 0.3
model = { kind = "llama", vocabulary = 11, context = 5, layers = 2, heads = 4, kv_heads = 2, width = 8, hidden = 7, tied = true }
data = { kind = "bytes", path = "none" }
optimizer = { kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }
schedule = { peak = 1e-2, warmup = 2, floor = 1e-3 }
batch = { micro_batch = 2, micro_batches = 2 }
""",
    "llama, a head of keys for every head of queries, not tied, other frequencies, two digits": """steps = 3
model = { kind = "llama", vocabulary = 7, context = 6, layers = 1, heads = 1, kv_heads = 1, width = 36, hidden = 5, rope_theta = 500000.0, norm_epsilon = 1e-3, init_std = 0.3 }
data = { kind = "bytes", path = "none" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
schedule = { peak = 0.03 }
batch = { micro_batch = 1, micro_batches = 3 }
digits = { all = 2 }
""",
    "llama, heads of their own width, biases of queries, keys and values, as Qwen2, wavelengths of a factor": """steps = 3
clip_norm = 1.0
model = { kind = "llama", vocabulary = 9, context = 4, layers = 2, heads = 2, kv_heads = 1, width = 6, head_width = 4, hidden = 5, qkv_bias = true, init_std = 0.1, rope_factor = 2.0 }
data = { kind = "bytes", path = "none" }
optimizer = { kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }
schedule = { peak = 1e-2 }
batch = { micro_batch = 2 }
""",
    "llama, all biases, queries and keys normalised, as Qwen3, wavelengths as Llama 3's": """steps = 3
model = { kind = "llama", vocabulary = 8, context = 3, layers = 1, heads = 4, kv_heads = 2, width = 8, head_width = 6, hidden = 6, qkv_bias = true, out_bias = true, mlp_bias = true, qk_norm = true, tied = true, norm_epsilon = 1e-6, init_std = 0.2, rope_theta = 7.0, rope_factor = 3.5, rope_low_freq_factor = 1.0, rope_high_freq_factor = 4.5, rope_original_context = 20 }
data = { kind = "bytes", path = "none" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.1 }
schedule = { peak = 0.03 }
batch = { micro_batch = 2, micro_batches = 2 }
""",
    "gpt, adapters of query, key and value together and of one other projection, with dropouts, two micro-batches, AdamW": """steps = 3
clip_norm = 0.05
model = { kind = "gpt", vocabulary = 11, context = 4, layers = 2, heads = 2, width = 6, dropout = 0.1, lora = { rank = 2, alpha = 3.0, targets = ["c_attn", "1.mlp.c_proj"], dropout = 0.2 } }
data = { kind = "bytes", path = "none" }
optimizer = { kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }
schedule = { peak = 1e-2 }
batch = { micro_batch = 2, micro_batches = 2 }
""",
    "llama, adapters of all projections, biases, two digits": """steps = 3
model = { kind = "llama", vocabulary = 9, context = 4, layers = 1, heads = 4, kv_heads = 2, width = 8, head_width = 6, hidden = 7, qkv_bias = true, qk_norm = true, init_std = 0.3, lora = { rank = 3, alpha = 1.0, targets = ["all-linear"] } }
data = { kind = "bytes", path = "none" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.1 }
schedule = { peak = 0.3 }
batch = { micro_batch = 2 }
digits = { all = 2 }
""",
    "llama, windows in two of three layers": """steps = 3
model = { kind = "llama", vocabulary = 9, context = 5, layers = 3, heads = 2, kv_heads = 1, width = 8, hidden = 5, init_std = 0.2, sliding_window = 2, full_layers = [1] }
data = { kind = "bytes", path = "none" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
schedule = { peak = 0.1 }
batch = { micro_batch = 1, micro_batches = 2 }
""",
    "llama, windows within documents, adapters": """steps = 3
model = { kind = "llama", vocabulary = 5, context = 6, layers = 1, heads = 2, kv_heads = 2, width = 8, hidden = 5, init_std = 0.3, document_end = 0, sliding_window = 3, lora = { rank = 2, alpha = 1.0, targets = ["all-linear"] } }
data = { kind = "bytes", path = "none" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.1 }
schedule = { peak = 0.3 }
batch = { micro_batch = 2 }
""",
    "bert, token types, dropout, masked tokens of two micro-batches": """steps = 3
model = { kind = "bert", vocabulary = 13, context = 5, layers = 2, heads = 2, width = 6, hidden = 7, token_types = 2, dropout = 0.1, attention_dropout = 0.3 }
data = { kind = "bytes", path = "none", masking = { token = 12 } }
loss = { ignore = 0 }
optimizer = { kind = "adamw", beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0.1 }
schedule = { peak = 0.01 }
batch = { micro_batch = 2, micro_batches = 2 }
""",
    "bert as DistilBERT, padding, gelu by tanh": """steps = 3
model = { kind = "bert", form = "distilbert", vocabulary = 9, context = 4, layers = 1, heads = 1, width = 4, hidden = 6, padding = 1, gelu = "tanh", norm_epsilon = 1e-3 }
data = { kind = "bytes", path = "none", masking = { token = 8 } }
loss = { ignore = 1 }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 1e-3 }
schedule = { peak = 0.1 }
batch = { micro_batch = 2 }
""",
    "bert with classes, token types, dropout before the classifier too, two micro-batches, AdamW": """steps = 3
clip_norm = 0.5
model = { kind = "bert", vocabulary = 13, context = 5, layers = 2, heads = 2, width = 6, hidden = 7, token_types = 2, classes = 3, dropout = 0.1, attention_dropout = 0.1, classifier_dropout = 0.1, init_std = 0.2 }
data = { kind = "arrays", inputs = "none.npy", labels = "none.npy", dtype = "u16" }
optimizer = { kind = "adamw", beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01 }
schedule = { peak = 0.01 }
batch = { micro_batch = 3, micro_batches = 2 }
""",
    "bert as DistilBERT with classes, padding, one layer": """steps = 3
model = { kind = "bert", form = "distilbert", vocabulary = 9, context = 6, layers = 1, heads = 2, width = 8, hidden = 6, padding = 0, classes = 2, init_std = 0.3 }
data = { kind = "arrays", inputs = "none.npy", labels = "none.npy", dtype = "u32" }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 1e-3 }
schedule = { peak = 0.1 }
batch = { micro_batch = 4, micro_batches = 2 }
""",
    "bert with classes, padding, gelu by tanh, smoothed labels of which one does not count": """steps = 3
model = { kind = "bert", vocabulary = 7, context = 4, layers = 1, heads = 1, width = 4, hidden = 5, padding = 6, classes = 4, gelu = "tanh", norm_epsilon = 1e-3, init_std = 0.3 }
data = { kind = "arrays", inputs = "none.npy", labels = "none.npy", dtype = "u16" }
loss = { smoothing = 0.1, ignore = 3 }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
schedule = { peak = 0.1 }
batch = { micro_batch = 3, micro_batches = 2 }
""",
    "vit, two planes, dropout, two micro-batches, AdamW": """steps = 3
clip_norm = 0.5
model = { kind = "vit", height = 4, width = 6, planes = 2, patch = 2, layers = 2, heads = 2, channels = 6, hidden = 7, classes = 3, dropout = 0.1, attention_dropout = 0.3, init_std = 0.2, image_mean = [0.5, 0.25], image_std = [0.25, 0.5] }
data = { kind = "arrays", inputs = "none.npy", labels = "none.npy", dtype = "u8" }
optimizer = { kind = "adamw", beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.01 }
schedule = { peak = 0.01 }
batch = { micro_batch = 3, micro_batches = 2 }
""",
    "vit without biases of queries, keys and values, gelu by tanh, smoothed labels, one patch across": """steps = 3
model = { kind = "vit", height = 9, width = 3, planes = 1, patch = 3, layers = 1, heads = 1, channels = 4, hidden = 5, classes = 4, qkv_bias = false, gelu = "tanh", norm_epsilon = 1e-3, init_std = 0.3, normalize = "half" }
data = { kind = "arrays", inputs = "none.npy", labels = "none.npy", dtype = "u8" }
loss = { smoothing = 0.1 }
optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.1 }
schedule = { peak = 0.1 }
batch = { micro_batch = 2 }
""",
}
