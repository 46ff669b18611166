//! The numbers that operators of the catalogue need besides their inputs.

/// The numbers that an operator may need besides its inputs. Each operator reads its own.
#[derive(Clone, Debug)]
pub struct Attributes {
    /// Samples that the rows of attentions, `rotary`, `dropout`, `position_embedding`, `class_token`, `first_position`, `last_position`,
    /// `mean_positions` and `exchange` hold, among others.
    pub samples: u32,
    /// Heads of attentions, `rotary` and `rms_norm`.
    pub heads: u32,
    /// Pixels from one patch of a convolution, or window of a pool, to the next.
    pub stride: u32,
    /// Rows and columns of padding around an image.
    pub padding: u32,
    /// Pixels of a window of `max_pool` and `avg_pool`, down and across.
    pub kernel: u32,
    /// Windows of `adaptive_avg_pool`, down and across.
    pub windows: [u32; 2],
    /// The first place of `slice` and `place`, the distance to the next one, and the places of the result.
    pub first: u32,
    /// See `first`.
    pub step: u32,
    /// See `first`.
    pub count: u32,
    /// The bound of the scores of `capped_attention`.
    pub cap: f32,
    /// Pixels of `as_image`, down and across.
    pub size: [u32; 2],
    /// Groups of channels of `grouped_conv2d`.
    pub groups: u32,
    /// The share of a target that all classes divide among them, of `weighted_cross_entropy`.
    pub smoothing: f32,
    /// The label without a loss, of `weighted_cross_entropy`; the row without a gradient, of `embedding`; the id of
    /// padding, of `padded_attention`; the id that ends a document, of `document_attention`.
    pub ignore: Option<u32>,
    /// The last positions that a position of `window_attention` attends to, its own included.
    pub window: Option<u32>,
    /// Drop probability of `dropout`.
    pub p: f32,
    /// The dropout's number in the model, one of the Philox counter's words.
    pub number: u32,
    /// The addend of the denominator, of `layer_norm`, `rms_norm`, `group_norm`, `batch_norm` and `adamw`.
    pub epsilon: f32,
    /// The base of the frequencies of `rotary`.
    pub theta: f32,
    /// The decay of AdamW's first moment.
    pub beta1: f32,
    /// The decay of AdamW's second moment.
    pub beta2: f32,
    /// The decoupled weight decay of `adamw` and `sgd`.
    pub weight_decay: f32,
    /// The momentum of `sgd` and `running_moments`.
    pub momentum: f32,
    /// The greatest norm, of `clip`.
    pub max_norm: f32,
}

impl Default for Attributes {
    /// The command's defaults.
    fn default() -> Attributes {
        Attributes {
            samples: 1,
            heads: 1,
            stride: 1,
            padding: 0,
            kernel: 2,
            windows: [1; 2],
            cap: 50.0,
            size: [1; 2],
            first: 0,
            step: 1,
            count: 1,
            groups: 1,
            smoothing: 0.0,
            ignore: None,
            window: None,
            p: 0.1,
            number: 0,
            epsilon: 1e-5,
            theta: 10_000.0,
            beta1: 0.9,
            beta2: 0.95,
            weight_decay: 0.1,
            momentum: 0.9,
            max_norm: 1.0,
        }
    }
}
