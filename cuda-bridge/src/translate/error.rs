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
    /// There is no function of that name.
    #[error("the module has no function `{function}`")]
    NoFunction { function: String },
    /// Only compute shaders become kernels.
    #[error("entry point `{entry}` is a {stage} shader: only compute shaders become kernels")]
    Stage { entry: String, stage: String },
    /// It asks for more than every GPU has.
    #[error("entry point `{entry}` takes {amount} {what}; at most {most} are portable")]
    TooLarge { entry: String, what: &'static str, amount: u64, most: u64 },
    /// It uses something whose meaning on CUDA is not defined to the bit here.
    #[error("entry point `{entry}`, {place}: {group} `{construct}` is not accepted: {reason}")]
    Construct {
        entry: String,
        /// The function or the module's variable that has it: "function `f_add`".
        place: String,
        group: Group,
        construct: String,
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
