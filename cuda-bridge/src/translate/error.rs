//! The reasons why a module cannot be translated.

/// The group that a refused construct belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Matrices, atomics, scalars of other than 32 bits, a runtime-sized array inside a struct.
    Type,
    /// The address space of a variable: textures, samplers and immediate data. For functions that are called by hand, every
    /// variable of the module.
    AddressSpace,
    /// The remainder (`%`) of floats, overrides, and all other expressions without a counterpart.
    Expression,
    /// A built-in function whose result WGSL does not define to the bit: `sin`, `pow`, `dot` of floats.
    Function,
    /// A conversion to scalars of other than 32 bits.
    Conversion,
    /// Subgroup operations, barriers of subgroups and textures.
    Statement,
    /// An input of the entry point without a counterpart in CUDA, such as `subgroup_size`.
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

/// The reasons why a module, or one entry point of it, cannot be translated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TranslateError {
    /// There is no entry point of that name.
    #[error("the module has no entry point `{entry}`")]
    NoEntryPoint {
        /// The requested name.
        entry: String,
    },
    /// There is no function of that name.
    #[error("the module has no function `{function}`")]
    NoFunction {
        /// The requested name.
        function: String,
    },
    /// Only compute shaders become kernels.
    #[error("entry point `{entry}` is a {stage} shader: only compute shaders become kernels")]
    Stage {
        /// The entry point's name.
        entry: String,
        /// The entry point's stage in naga's words: `Fragment`.
        stage: String,
    },
    /// The entry point needs more than every GPU has.
    #[error("entry point `{entry}` takes {amount} {what}; at most {most} are portable")]
    TooLarge {
        /// The entry point's name.
        entry: String,
        /// The exceeded resource: threads of a block, or bytes of workgroup memory.
        what: &'static str,
        /// The amount that the entry point needs.
        amount: u64,
        /// The amount that every GPU has.
        most: u64,
    },
    /// The module uses a construct whose meaning on CUDA is not defined to the bit here.
    #[error("entry point `{entry}`, {place}: {group} `{construct}` is not accepted: {reason}")]
    Construct {
        /// The entry point, or the function requested by name, whose translation met the construct.
        entry: String,
        /// The function or the module's variable that has the construct: "function `f_add`".
        place: String,
        /// The kind of construct.
        group: Group,
        /// The construct's name in naga's IR: `Sin`, `Modulo`, `Atomic`.
        construct: String,
        /// The reason, in words.
        reason: &'static str,
    },
}

/// A refusal; the code that walks the functions adds its place.
#[derive(Debug)]
pub(super) struct Refusal {
    /// The place of the construct, once it is known.
    pub place: Option<String>,
    pub group: Group,
    pub construct: String,
    pub reason: &'static str,
}

impl Refusal {
    /// The refusal with this function (or variable) as its place, unless it comes from a function that this one calls.
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
    // Readers know the variant's name; its fields are handles.
    let text = format!("{construct:?}");
    let text = text.trim_start_matches('"');
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    Err(Refusal { place: None, group, construct: text[..end].to_string(), reason })
}
