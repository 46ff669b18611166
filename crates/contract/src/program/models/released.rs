//! The layout of a model's tensors in the files that other libraries write and read: names, shapes and strides as data.
//!
//! A [`Released`] tensor is made of elements of state tensors, each at an index that strides give. So one table serves import,
//! export and access to single elements. Sources: `GPT2LMHeadModel` of transformers, the models of torchvision, and
//! `torch.nn.Sequential`.

/// A tensor of a released file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// The name that an export writes.
    pub name: String,
    /// Another name that some files use.
    pub also: Option<String>,
    /// The dimensions; empty for a scalar.
    pub shape: Vec<u32>,
    /// The source of the elements.
    pub made: Made,
}

/// The source of a released tensor's elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Made {
    /// F32: elements of state tensors, which give each element of the released tensor exactly once.
    Of(Vec<Part>),
    /// A copy of another released tensor's elements, which some files have. The copy must be equal at import, and an export
    /// leaves it out.
    CopyOf(Vec<Part>),
    /// A tensor that some files have and the model lacks, such as an attention mask or another head's layer: an import does not
    /// read it, and an export leaves it out.
    Mask,
    /// I64: the number of batches that running averages saw. No program has it, so an import does not read it. An export writes
    /// the run's step, since each step moves the averages once.
    Counter,
}

/// The position of a state tensor's elements in a released tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The state tensor's name, `param/NAME` or `buffer/NAME`.
    pub tensor: String,
    /// The state tensor's dimensions, or finer ones with as many elements, in C order.
    pub dims: [u32; 4],
    /// Elements of the released tensor from one index of a dimension to the next.
    pub strides: [u64; 4],
    /// The index of the first element in the released tensor.
    pub first: u64,
}

impl Part {
    /// A whole tensor of this many elements, in its own order, from `first` on.
    pub(crate) fn whole(tensor: String, len: u32, first: u64) -> Part {
        Part { tensor, dims: [1, 1, 1, len], strides: [0, 0, 0, 1], first }
    }

    /// The number of elements.
    #[doc(hidden)] // for the layers above
    pub fn len(&self) -> u64 {
        self.dims.iter().map(|&d| u64::from(d)).product()
    }

    /// True if the part has no element.
    #[doc(hidden)] // for the layers above
    pub fn is_empty(&self) -> bool {
        self.dims.contains(&0)
    }

    /// True if the elements lie one behind the other in the released tensor, in the state tensor's order.
    #[doc(hidden)] // for the layers above
    pub fn is_contiguous(&self) -> bool {
        let mut len = 1;
        for (&dim, &stride) in self.dims.iter().zip(&self.strides).rev() {
            if dim != 1 && stride != len {
                return false;
            }
            len *= u64::from(dim);
        }
        true
    }

    /// The index in the released tensor of the state tensor's element `element`.
    #[doc(hidden)] // for the layers above
    pub fn place(&self, element: u64) -> u64 {
        let (mut left, mut place) = (element, self.first);
        for (&d, stride) in self.dims.iter().zip(self.strides).rev() {
            place += left % u64::from(d) * stride;
            left /= u64::from(d);
        }
        place
    }

    /// The indices of all elements in the released tensor, in the state tensor's order.
    #[doc(hidden)] // for the layers above
    pub fn places(&self) -> impl Iterator<Item = u64> + '_ {
        let [d0, d1, d2, d3] = self.dims.map(u64::from);
        let [s0, s1, s2, s3] = self.strides;
        let rows = (0..d0).flat_map(move |a| (0..d1).flat_map(move |b| (0..d2).map(move |c| (a, b, c))));
        rows.flat_map(move |(a, b, c)| {
            let row = self.first + a * s0 + b * s1 + c * s2;
            (0..d3).map(move |d| row + d * s3)
        })
    }
}

/// The number of elements of a shape. The shapes of a program fit; a job with larger ones is refused.
fn elements(shape: &[u32]) -> u32 {
    shape.iter().fold(1, |count, &d| count.saturating_mul(d))
}

impl Released {
    fn of(name: impl Into<String>, shape: &[u32], parts: Vec<Part>) -> Released {
        Released { name: name.into(), also: None, shape: shape.to_vec(), made: Made::Of(parts) }
    }

    /// A state tensor, unchanged.
    pub fn same(name: impl Into<String>, tensor: impl Into<String>, shape: &[u32]) -> Released {
        Released::of(name, shape, vec![Part::whole(tensor.into(), elements(shape), 0)])
    }

    /// Matrices [outputs, inputs], each transposed, side by side: [inputs, outputs * number].
    pub(crate) fn fused(name: impl Into<String>, tensors: &[&str], outputs: u32, inputs: u32) -> Released {
        let columns = outputs * tensors.len() as u32;
        let part = |(number, tensor): (u32, &&str)| Part {
            tensor: tensor.to_string(),
            dims: [1, 1, outputs, inputs],
            strides: [0, 0, 1, columns.into()],
            first: (number * outputs).into(),
        };
        Released::of(name, &[inputs, columns], (0..).zip(tensors).map(part).collect())
    }

    /// Vectors of `len` elements, one behind the other.
    pub(crate) fn joined(name: impl Into<String>, tensors: &[&str], len: u32) -> Released {
        let part =
            |(number, tensor): (u32, &&str)| Part::whole(tensor.to_string(), len, (number * len).into());
        let parts = (0..).zip(tensors).map(part).collect();
        Released::of(name, &[len * tensors.len() as u32], parts)
    }

    /// A convolution's kernels [outputs, rows, columns, inputs] as [outputs, inputs, rows, columns].
    pub(crate) fn kernels(name: impl Into<String>, tensor: impl Into<String>, shape: &[u32]) -> Released {
        let &[outputs, rows, columns, inputs] = shape else { panic!("kernels have four dimensions") };
        let taps = u64::from(rows * columns);
        let strides = [u64::from(inputs) * taps, columns.into(), 1, taps];
        let part = Part { tensor: tensor.into(), dims: [outputs, rows, columns, inputs], strides, first: 0 };
        Released::of(name, &[outputs, inputs, rows, columns], vec![part])
    }

    /// PyTorch's `BatchNorm2d` of the normalisation `ours`: gain, bias, running averages, and a counter of batches.
    pub(crate) fn batch_norm(name: &str, ours: &str, channels: u32) -> [Released; 5] {
        let same =
            |theirs: &str, tensor: String| Released::same(format!("{name}.{theirs}"), tensor, &[channels]);
        [
            same("weight", format!("param/{ours}.gain")),
            same("bias", format!("param/{ours}.bias")),
            same("running_mean", format!("buffer/{ours}.running_mean")),
            same("running_var", format!("buffer/{ours}.running_var")),
            Released { shape: Vec::new(), made: Made::Counter, ..same("num_batches_tracked", String::new()) },
        ]
    }

    /// Weight and bias of a linear layer, unchanged.
    pub(crate) fn linear(name: &str, ours: &str, outputs: u32, inputs: u32) -> [Released; 2] {
        [("weight", vec![outputs, inputs]), ("bias", vec![outputs])].map(|(part, shape)| {
            Released::same(format!("{name}.{part}"), format!("param/{ours}.{part}"), &shape)
        })
    }

    /// The same tensor, with a second name that files may use.
    #[must_use]
    pub fn or(self, also: impl Into<String>) -> Released {
        Released { also: Some(also.into()), ..self }
    }

    /// The same tensor, with a prefix before its names.
    #[must_use]
    pub fn behind(self, prefix: &str) -> Released {
        let name = |name: String| format!("{prefix}{name}");
        Released { name: name(self.name), also: self.also.map(name), ..self }
    }

    /// The names that files may use, the exported one first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        [self.name.as_str()].into_iter().chain(self.also.as_deref())
    }

    /// The state tensors' elements that an export writes; empty for tensors that have none.
    pub fn parts(&self) -> &[Part] {
        match &self.made {
            Made::Of(parts) => parts,
            _ => &[],
        }
    }

    /// True if an export writes the tensor.
    pub fn is_written(&self) -> bool {
        matches!(self.made, Made::Of(_) | Made::Counter)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::program::models::{Model, small};

    fn read(keys: &str) -> Model {
        serde_json::from_str(&format!("{{{keys}}}")).unwrap()
    }

    #[test]
    fn a_layout_holds_every_element_once() {
        let image = r#""height":32,"width":32,"planes":2,"classes":3,"norm":"batch""#;
        let resnet = r#""kind":"resnet","order":"post","stages":[3,4],"blocks":[1,2],"block":"bottleneck""#;
        let others = [
            read(&format!("{resnet},{image}")),
            read(&format!(r#""kind":"vgg11","channels":[1,2,1,2,1,2,1,2],"classifier":3,{image}"#)),
        ];
        let mut layouts = 0;
        for model in small(0).into_iter().chain(others) {
            let Some(layout) = model.released() else { continue };
            layouts += 1;
            let mut held = BTreeMap::new();
            for released in &layout {
                let mut places: Vec<u64> = released.parts().iter().flat_map(Part::places).collect();
                places.sort_unstable();
                let written = if released.parts().is_empty() { 0 } else { elements(&released.shape) };
                assert!(places.into_iter().eq(0..u64::from(written)), "{}", released.name);
                for part in released.parts() {
                    assert!(held.insert(part.tensor.clone(), part.len()).is_none(), "{}", part.tensor);
                    assert!((0..part.len()).map(|element| part.place(element)).eq(part.places()));
                }
            }
            let of = |(prefix, name, shape): (&str, String, Vec<u32>)| {
                (format!("{prefix}/{name}"), u64::from(elements(&shape)))
            };
            let parameters = model.parameters().into_iter().map(|p| ("param", p.name, p.shape));
            let running = model.statistics().into_iter().flat_map(|statistic| {
                statistic.running().map(|name| ("buffer", name, vec![statistic.channels]))
            });
            assert_eq!(held, parameters.chain(running).map(of).collect::<BTreeMap<_, _>>());
        }
        assert!(layouts >= 6, "{layouts}");
    }

    #[test]
    fn gpt2_has_the_names_and_shapes_of_transformers() {
        let keys = r#""kind":"gpt","vocabulary":50257,"context":1024,"layers":12,"heads":12,"width":768"#;
        let theirs: BTreeMap<String, Vec<u32>> =
            serde_json::from_str(include_str!("../../../../../assets/gpt2_table.json")).unwrap();
        let layout = read(keys).released().unwrap().into_iter().filter(Released::is_written);
        assert_eq!(layout.map(|r| (r.name, r.shape)).collect::<BTreeMap<_, _>>(), theirs);
        assert_eq!(read(keys).parameter_count(), 124_439_808);
    }

    #[test]
    fn a_llama_has_the_names_and_shapes_of_transformers() {
        let keys = r#""kind":"llama","vocabulary":49152,"context":2048,"layers":30,"heads":9,"kv_heads":3,"width":576,"hidden":1536"#;
        let theirs: BTreeMap<String, Vec<u32>> =
            serde_json::from_str(include_str!("../../../../../assets/llama_table.json")).unwrap();
        let layout = read(keys).released().unwrap().into_iter().filter(Released::is_written);
        assert_eq!(layout.map(|r| (r.name, r.shape)).collect::<BTreeMap<_, _>>(), theirs);
        // Tied, it is the model that is named after its 135 million parameters.
        assert_eq!(read(&format!(r#"{keys},"tied":true"#)).parameter_count(), 134_515_008);
    }

    #[test]
    fn encoders_have_the_names_and_shapes_of_transformers() {
        let theirs: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(include_str!("../../../../../assets/bert_tables.json")).unwrap();
        let sizes = r#""vocabulary":30522,"context":512,"heads":12,"width":768,"hidden":3072"#;
        for (name, keys) in [
            ("bert", r#""token_types":2,"layers":12"#),
            ("distilbert", r#""form":"distilbert","layers":6"#),
            ("bert-classes", r#""token_types":2,"layers":12,"classes":3"#),
            ("distilbert-classes", r#""form":"distilbert","layers":6,"classes":3"#),
        ] {
            let model = read(&format!(r#""kind":"bert",{sizes},{keys}"#));
            let theirs: BTreeMap<String, Vec<u32>> = serde_json::from_value(theirs[name].clone()).unwrap();
            let layout = model.released().unwrap().into_iter().filter(Released::is_written);
            assert_eq!(layout.map(|r| (r.name, r.shape)).collect::<BTreeMap<_, _>>(), theirs, "{name}");
            let count: u64 = theirs.values().map(|shape| u64::from(elements(shape))).sum();
            assert_eq!(model.parameter_count(), count);
        }
        assert_eq!(theirs.len(), 4);
        // No class of transformers has BERT's blocks without types.
        assert!(read(&format!(r#""kind":"bert",{sizes},"layers":1"#)).released().is_none());
    }

    #[test]
    fn a_vision_transformer_has_the_names_and_shapes_of_transformers() {
        let keys = r#""kind":"vit","height":224,"width":224,"planes":3,"patch":16,"layers":12,"heads":12,"channels":768,"hidden":3072"#;
        let theirs: BTreeMap<String, Vec<u32>> =
            serde_json::from_str(include_str!("../../../../../assets/vit_table.json")).unwrap();
        let model = read(&format!(r#"{keys},"classes":1000"#));
        let layout = model.released().unwrap().into_iter().filter(Released::is_written);
        assert_eq!(layout.map(|r| (r.name, r.shape)).collect::<BTreeMap<_, _>>(), theirs);
        assert_eq!(model.parameter_count(), 86_567_656);
    }

    #[test]
    fn networks_have_the_names_and_shapes_of_torchvision() {
        let theirs = include_str!("../../../../../assets/torchvision_tables.json");
        // Pairs in a list, in the table's order.
        let theirs: serde_json::Map<String, serde_json::Value> = serde_json::from_str(theirs).unwrap();
        for (name, keys) in [
            ("resnet18", r#"STEM,"stages":[64,128,256,512],"blocks":2"#),
            ("resnet50", r#"STEM,"stages":[64,128,256,512],"blocks":[3,4,6,3],"block":"bottleneck""#),
            (
                "resnext50_32x4d",
                r#"STEM,"stages":[64,128,256,512],"blocks":[3,4,6,3],"block":"bottleneck","groups":32,"width_per_group":4"#,
            ),
            ("vgg11", r#""kind":"vgg11",IMAGE"#),
            ("vgg11_bn", r#""kind":"vgg11",IMAGE,"norm":"batch""#),
        ] {
            let stem = r#""kind":"resnet",IMAGE,"stem":"imagenet","order":"post","norm":"batch""#;
            let image = r#""height":224,"width":224,"planes":3,"classes":1000"#;
            let model = read(&keys.replace("STEM", stem).replace("IMAGE", image));
            let pairs = |key: &str| -> Vec<(String, Vec<u32>)> {
                serde_json::from_value(theirs[name][key].clone()).unwrap()
            };
            let tensors: BTreeMap<_, _> = pairs("parameters").into_iter().chain(pairs("buffers")).collect();
            let layout = model.released().unwrap().into_iter().filter(|r| !r.parts().is_empty());
            assert_eq!(layout.map(|r| (r.name, r.shape)).collect::<BTreeMap<_, _>>(), tensors, "{name}");
            assert_eq!(theirs[name]["count"], model.parameter_count(), "{name}");
        }
        assert_eq!(theirs.len(), 5);
    }
}
