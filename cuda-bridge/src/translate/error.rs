//! Why a module cannot be translated.

/// The group that a refused construct belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Type,
    AddressSpace,
    Expression,
    Function,
    Conversion,
    Statement,
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
    NoEntryPoint { entry: String },
    /// Only compute shaders become kernels.
    #[error("entry point `{entry}` is a {stage} shader: only compute shaders become kernels")]
    Stage { entry: String, stage: String },
    /// It asks for more than every GPU has.
    #[error("entry point `{entry}` takes {amount} {what}; at most {most} are portable")]
    TooLarge { entry: String, what: &'static str, amount: u64, most: u64 },
    /// It uses something whose meaning on CUDA is not defined to the bit here.
    #[error("entry point `{entry}`, function `{function}`: {group} {construct} is not accepted: {reason}")]
    Construct { entry: String, function: String, group: Group, construct: String, reason: &'static str },
}

/// A refusal; whoever walks the functions adds its place.
#[derive(Debug)]
pub(super) struct Refusal {
    /// The function that it was met in, once that is known.
    pub function: Option<String>,
    pub group: Group,
    pub construct: String,
    pub reason: &'static str,
}

impl Refusal {
    /// The refusal as met in this function, unless it comes from one that it calls.
    pub fn within(self, function: &str) -> Refusal {
        Refusal { function: self.function.or_else(|| Some(function.into())), ..self }
    }

    pub fn at(self, entry: &str) -> TranslateError {
        let Refusal { function, group, construct, reason } = self;
        TranslateError::Construct {
            entry: entry.into(),
            function: function.unwrap_or_else(|| entry.into()),
            group,
            construct: format!("`{construct}`"),
            reason,
        }
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
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    Err(Refusal { function: None, group, construct: text[..end].to_string(), reason })
}
