//! Graphs, their gradients, models and whole training steps.
//!
//! A graph and its gradient:
//!
//! ```
//! use tiebreak::arith::DType;
//! use tiebreak::program::builder::Builder;
//! use tiebreak::program::operators::relu;
//! use tiebreak::program::products::ProductTable;
//!
//! let mut b = Builder::new(ProductTable::preset());
//! let x = b.input("x", DType::F32, &[2, 3]);
//! let dy = b.input("dy", DType::F32, &[2, 3]);
//! let y = relu(&mut b, x);
//! let gradients = b.backward(y, dy);
//! b.output("dx", gradients[&x]);
//! let graph = b.finish();
//! assert_eq!(graph.outputs.len(), 1);
//! ```
//!
//! An operator of one's own is a body of instructions, and needs no kernel:
//!
//! ```
//! use tiebreak::arith::DType;
//! use tiebreak::program::builder::Builder;
//! use tiebreak::program::expr::Body;
//! use tiebreak::program::products::ProductTable;
//!
//! let square = Body::new("square.v1", |w| {
//!     let x = w.input(0);
//!     w.mul(x, x)
//! });
//! let mut b = Builder::new(ProductTable::preset());
//! let x = b.input("x", DType::F32, &[4]);
//! let y = b.map(square, &[x], &[4]);
//! b.output("y", y);
//! assert_eq!(b.finish().nodes.len(), 1);
//! ```
//!
//! A program is bytes, and reads back as itself:
//!
//! ```
//! # let job_text = r#"
//! # steps = 3
//! # model = { kind = "gpt", vocabulary = 128, context = 4, layers = 1, heads = 1, width = 8 }
//! # data = { kind = "bytes", path = "text.txt" }
//! # optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
//! # schedule = { peak = 0.1 }
//! # batch = { micro_batch = 2 }
//! # "#;
//! use tiebreak::job::Job;
//! use tiebreak::program::{decoding, encoding};
//!
//! let program = Job::parse("job.toml", job_text)?.program(None)?;
//! let bytes = encoding::encode(&program);
//! assert_eq!(encoding::encode(&decoding::decode(&bytes)?), bytes);
//! assert!(decoding::decode(&bytes[1..]).is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The first state follows from the seed:
//!
//! ```
//! # let job_text = r#"
//! # steps = 3
//! # model = { kind = "gpt", vocabulary = 128, context = 4, layers = 1, heads = 1, width = 8 }
//! # data = { kind = "bytes", path = "text.txt" }
//! # optimizer = { kind = "sgd", momentum = 0.9, weight_decay = 0.0 }
//! # schedule = { peak = 0.1 }
//! # batch = { micro_batch = 2 }
//! # "#;
//! use tiebreak::job::Job;
//! use tiebreak::program::init;
//!
//! let program = Job::parse("job.toml", job_text)?.program(None)?;
//! assert_eq!(init::state(&program, [1, 2]).len(), program.state().len());
//! assert!(init::state(&program, [1, 2]) != init::state(&program, [1, 3]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The operators that run alone:
//!
//! ```
//! use tiebreak::program::catalogue::OPERATORS;
//!
//! assert!(OPERATORS.iter().any(|operator| operator.name == "layer_norm" && operator.differentiable));
//! ```

#[doc(inline)]
pub use tiebreak_contract::program::{builder, phase};

/// The operators that run alone, as a table.
pub mod catalogue {
    #[doc(inline)]
    pub use tiebreak_contract::program::catalogue::{Appended, Attributes, Input, OPERATORS, Operator};
}

/// Programs from bytes that somebody sends.
pub mod decoding {
    #[doc(inline)]
    pub use tiebreak_contract::program::decoding::{ProgramError, decode};
}

/// Programs as canonical bytes.
pub mod encoding {
    #[doc(inline)]
    pub use tiebreak_contract::program::encoding::encode;
}

/// The bodies of elementwise operators, as lists of instructions.
pub mod expr {
    #[doc(inline)]
    pub use tiebreak_contract::program::expr::{Body, BodyWriter, Instr, Reg};
}

/// Graphs: tensors, and nodes that are primitives.
pub mod graph {
    #[doc(inline)]
    pub use tiebreak_contract::program::graph::{
        Graph, LoggedProduct, Node, Port, Primitive, TensorId, TensorType, View, block_count,
    };
}

/// The geometry of convolutions, which primitives carry.
pub mod im2col {
    #[doc(inline)]
    pub use tiebreak_contract::program::im2col::{ConvGeometry, DigitPatches};
}

/// The first states, from a seed.
pub mod init {
    #[doc(inline)]
    pub use tiebreak_contract::program::init::{state, state_tensor};
}

/// The keys of a model's table in a job.
pub mod keys {
    #[doc(inline)]
    pub use tiebreak_contract::program::keys::{Key, Presence, Type};
}

/// The built-in models, and the interface of a model.
pub mod models {
    #[doc(inline)]
    pub use tiebreak_contract::program::models::{
        BatchTensor, Bert, BertForm, Block, Blocks, Gelu, Gpt, Init, Input, Inputs, KINDS, Llama, Lora, Loss,
        Mlp, Mode, Model, ModelParameter, Network, Norm, Normalization, Normalize, Order, ProductSize,
        Resnet, Sizes, Statistic, Stem, Vgg11, VggNorm, Vit, keys,
    };

    /// Names and layouts of a model's tensors in other libraries' files.
    pub mod released {
        #[doc(inline)]
        pub use tiebreak_contract::program::models::released::{Made, Part, Released};
    }
}

/// The operators of the contract, each with its gradient.
pub mod operators {
    #[doc(inline)]
    pub use tiebreak_contract::program::operators::{
        ConvVersion, Dropout, LinearClasses, LossRule, Moments, ProductOperand, Rotary, Seen, Window,
        attention, avg_pool, batch_norm, causal_attention, conv2d, cross_entropy, dropout, flatten, gelu_erf,
        gelu_tanh, grouped_conv2d, layer_norm, linear, max_pool, relu, residual, rms_norm, rotary,
        rotary_tables,
    };
}

/// The optimizers.
pub mod optimizer {
    #[doc(inline)]
    pub use tiebreak_contract::program::optimizer::{Decay, Optimizer};
}

/// The digits of each class of products.
pub mod products {
    #[doc(inline)]
    pub use tiebreak_contract::program::products::{ProductClass, ProductDigits, ProductTable};
}

/// The learning rate's schedule.
pub mod schedule {
    #[doc(inline)]
    pub use tiebreak_contract::program::schedule::{Decay, Schedule};
}

/// A training step: three graphs, and the state between them.
pub mod step {
    #[doc(inline)]
    pub use tiebreak_contract::program::step::{
        Buffer, MicroBatch, Parameter, Program, StateTensor, StepSpec,
    };
}
