//! Why a module cannot be translated.

/// The group that a refused construct belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Matrices, atomics, scalars of other than 32 bits, a runtime-sized array inside a struct.
    Type,
    /// Of a variable: textures, samplers and immediate data; for functions that are called by hand, every variable of the module.
    AddressSpace,
    /// The remainder (`%`) of floats, overrides, and whatever else has no counterpart.
    Expression,
    /// A built-in function whose result WGSL does not define to the bit: `sin`, `pow`, `dot` of floats.
    Function,
    /// To scalars of other than 32 bits.
    Conversion,
    /// Subgroup operations, barriers of subgroups and textures.
    Statement,
    /// An input of the entry point that CUDA has no counterpart of, as `subgroup_size`.
    BuiltIn,
}

impl std::fmt::Display for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Group::Type => "the type",
            Group::AddressSpace => "the address space",
            Group::Expression => "the expression",
            Group::Function => "the built-in function",
            Group::Conversion => "the conversion",
            Group::Statement => "the statement",
            Group::BuiltIn => "the built-in value",
        })
    }
}

/// Why a module, or one entry point of it, cannot be translated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TranslateError {
    /// There is no entry point of that name.
    #[error("the module has no entry point `{entry}`")]
    NoEntryPoint {
        /// The name that was asked for.
        entry: String,
    },
    /// There is no function of that name.
    #[error("the module has no function `{function}`")]
    NoFunction {
        /// The name that was asked for.
        function: String,
    },
    /// Only compute shaders become kernels.
    #[error("entry point `{entry}` is a {stage} shader: only compute shaders become kernels")]
    Stage {
        /// The entry point's name.
        entry: String,
        /// Its stage in naga's words: `Fragment`.
        stage: String,
    },
    /// It asks for more than every GPU has.
    #[error("entry point `{entry}` takes {amount} {what}; at most {most} are portable")]
    TooLarge {
        /// The entry point's name.
        entry: String,
        /// What there is too much of: threads of a block, or bytes of workgroup memory.
        what: &'static str,
        /// How much the entry point takes.
        amount: u64,
        /// How much every GPU has.
        most: u64,
    },
    /// It uses something whose meaning on CUDA is not defined to the bit here.
    #[error("entry point `{entry}`, {place}: {group} `{construct}` is not accepted: {reason}")]
    Construct {
        /// The entry point, or the function that was asked for by name, whose translation met it.
        entry: String,
        /// The function or the module's variable that has it: "function `f_add`".
        place: String,
        /// What kind of construct it is.
        group: Group,
        /// Its name in naga's IR: `Sin`, `Modulo`, `Atomic`.
        construct: String,
        /// Why, in words.
        reason: &'static str,
    },
}

/// A refusal; whoever walks the functions adds its place.
#[derive(Debug)]
pub(super) struct Refusal {
    /// Where it was met, once that is known.
    pub place: Option<String>,
    pub group: Group,
    pub construct: String,
    pub reason: &'static str,
}

impl Refusal {
    /// The refusal as met in this function (or variable), unless it comes from one that it calls.
    pub fn within(self, what: &str, name: &str) -> Refusal {
        Refusal { place: self.place.or_else(|| Some(format!("{what} `{name}`"))), ..self }
    }

    pub fn at(self, entry: &str) -> TranslateError {
        let Refusal { place, group, construct, reason } = self;
        let place = place.unwrap_or_else(|| format!("function `{entry}`"));
        TranslateError::Construct { entry: entry.into(), place, group, construct, reason }
    }
}

/// Refuses a construct.
pub(super) fn refuse<T>(
    group: Group,
    construct: impl std::fmt::Debug,
    reason: &'static str,
) -> Result<T, Refusal> {
    // The name of the variant is what a reader knows; its fields are handles.
    let text = format!("{construct:?}");
    let text = text.trim_start_matches('"');
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    Err(Refusal { place: None, group, construct: text[..end].to_string(), reason })
}
