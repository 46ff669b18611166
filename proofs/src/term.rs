//! Terms of SMT-LIB's theory of bit vectors, each stored once. Terms that depend on constants alone are computed here, so that
//! the rounds of a counted loop end by themselves.

use std::collections::HashMap;
use std::fmt::Write;

/// The sort of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sort {
    /// A truth value.
    Bool,
    /// A bit vector of this width.
    Bits(u32),
}

impl std::fmt::Display for Sort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Sort::Bool => f.write_str("Bool"),
            Sort::Bits(width) => write!(f, "(_ BitVec {width})"),
        }
    }
}

/// A term of a [`Terms`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Term(usize);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Node {
    Bool(bool),
    Word(u32),
    Input(String),
    Apply(String, Vec<Term>),
}

/// All terms of a function.
#[derive(Default)]
pub struct Terms {
    nodes: Vec<(Node, Sort)>,
    known: HashMap<Node, Term>,
}

/// A 32-bit word.
pub const WORD: Sort = Sort::Bits(32);

impl Terms {
    fn keep(&mut self, node: Node, sort: Sort) -> Term {
        if let Some(term) = self.known.get(&node) {
            return *term;
        }
        let term = Term(self.nodes.len());
        self.nodes.push((node.clone(), sort));
        self.known.insert(node, term);
        term
    }

    /// A truth value.
    pub fn bool(&mut self, value: bool) -> Term {
        self.keep(Node::Bool(value), Sort::Bool)
    }

    /// A word.
    pub fn word(&mut self, value: u32) -> Term {
        self.keep(Node::Word(value), WORD)
    }

    /// A parameter of the function.
    pub fn input(&mut self, name: &str, sort: Sort) -> Term {
        self.keep(Node::Input(name.into()), sort)
    }

    /// The sort of a term.
    pub fn sort(&self, term: Term) -> Sort {
        self.nodes[term.0].1
    }

    /// The value of a term that is a constant truth value.
    pub fn as_bool(&self, term: Term) -> Option<bool> {
        match self.nodes[term.0].0 {
            Node::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// The value of a term that is a constant word.
    pub fn as_word(&self, term: Term) -> Option<u32> {
        match self.nodes[term.0].0 {
            Node::Word(value) => Some(value),
            _ => None,
        }
    }

    /// A function of SMT-LIB or of the text, applied.
    pub fn apply(&mut self, operator: &str, arguments: &[Term], sort: Sort) -> Term {
        let words: Option<Vec<u32>> = arguments.iter().map(|a| self.as_word(*a)).collect();
        if let Some(value) = words.and_then(|words| fold(operator, &words)) {
            return match value {
                Folded::Bool(value) => self.bool(value),
                Folded::Word(value) => self.word(value),
            };
        }
        if let Some(term) = self.neutral(operator, arguments) {
            return term;
        }
        // A mask of a mask: the text masks shift amounts, and so does WGSL.
        if let ("bvand", [inner, mask]) = (operator, arguments)
            && let Node::Apply(name, parts) = &self.nodes[inner.0].0
            && name == "bvand"
            && parts.get(1) == Some(mask)
        {
            return *inner;
        }
        self.keep(Node::Apply(operator.into(), arguments.to_vec()), sort)
    }

    /// The result of an operator if one operand decides it.
    fn neutral(&mut self, operator: &str, arguments: &[Term]) -> Option<Term> {
        let [a, b] = *arguments else { return None };
        match (operator, self.as_word(a), self.as_word(b)) {
            ("bvadd" | "bvor", Some(0), _) => Some(b),
            ("bvadd" | "bvor" | "bvsub" | "bvshl" | "bvlshr", _, Some(0)) => Some(a),
            ("wgsl.mul", Some(1), _) => Some(b),
            ("wgsl.mul" | "wgsl.udiv", _, Some(1)) => Some(a),
            ("wgsl.mul", Some(0), _) | ("wgsl.mul", _, Some(0)) | ("wgsl.urem", _, Some(1)) => {
                Some(self.word(0))
            }
            ("=", None, None) if a == b => Some(self.bool(true)),
            _ => None,
        }
    }

    /// not a
    pub fn not(&mut self, a: Term) -> Term {
        match &self.nodes[a.0].0 {
            Node::Bool(value) => {
                let value = !*value;
                self.bool(value)
            }
            Node::Apply(name, parts) if name == "not" => parts[0],
            _ => self.keep(Node::Apply("not".into(), vec![a]), Sort::Bool),
        }
    }

    /// a and b
    pub fn and(&mut self, a: Term, b: Term) -> Term {
        match (self.as_bool(a), self.as_bool(b)) {
            (Some(false), _) | (_, Some(true)) => a,
            (Some(true), _) | (_, Some(false)) => b,
            _ if a == b => a,
            _ => self.keep(Node::Apply("and".into(), vec![a, b]), Sort::Bool),
        }
    }

    /// a or b
    pub fn or(&mut self, a: Term, b: Term) -> Term {
        match (self.as_bool(a), self.as_bool(b)) {
            (Some(true), _) | (_, Some(false)) => a,
            (Some(false), _) | (_, Some(true)) => b,
            _ if a == b => a,
            _ if self.not(a) == b => self.bool(true),
            _ => self.keep(Node::Apply("or".into(), vec![a, b]), Sort::Bool),
        }
    }

    /// yes if the condition holds, else no
    pub fn ite(&mut self, condition: Term, yes: Term, no: Term) -> Term {
        match self.as_bool(condition) {
            _ if yes == no => yes,
            Some(true) => yes,
            Some(false) => no,
            None => {
                let sort = self.sort(yes);
                self.keep(Node::Apply("ite".into(), vec![condition, yes, no]), sort)
            }
        }
    }

    /// Several terms as one bit vector: the first lowest, as in memory. A truth value is one bit.
    pub fn pack(&mut self, parts: &[Term]) -> Term {
        if let [part] = parts {
            return *part;
        }
        let mut bits = Vec::new();
        let mut width = 0;
        for part in parts.iter().rev() {
            match self.sort(*part) {
                Sort::Bits(w) => {
                    width += w;
                    bits.push(*part);
                }
                Sort::Bool => {
                    width += 1;
                    bits.push(self.keep(Node::Apply("wgsl.bit".into(), vec![*part]), Sort::Bits(1)));
                }
            }
        }
        self.apply("concat", &bits, Sort::Bits(width))
    }

    /// The parts of a packed bit vector, of these sorts.
    pub fn unpack(&mut self, packed: Term, sorts: &[Sort]) -> Vec<Term> {
        if sorts.len() == 1 {
            return vec![packed];
        }
        let mut from = 0;
        let mut parts = Vec::new();
        for sort in sorts {
            let width = width(*sort);
            let part = format!("(_ extract {} {from})", from + width - 1);
            let mut term = self.apply(&part, &[packed], Sort::Bits(width));
            if *sort == Sort::Bool {
                term = self.apply("wgsl.true", &[term], Sort::Bool);
            }
            parts.push(term);
            from += width;
        }
        parts
    }

    /// The text of a term; subterms that it uses more than once are in `let`s.
    pub fn print(&self, root: Term) -> String {
        let mut uses = vec![0u32; root.0 + 1];
        uses[root.0] = 1;
        // Arguments are older than the terms that use them.
        for i in (0..=root.0).rev() {
            if let (1.., Node::Apply(_, arguments)) = (uses[i], &self.nodes[i].0) {
                arguments.iter().for_each(|a| uses[a.0] += 1);
            }
        }
        let mut texts = vec![String::new(); root.0 + 1];
        let (mut out, mut open) = (String::new(), 0);
        for i in (0..=root.0).filter(|i| uses[*i] > 0) {
            let text = match &self.nodes[i].0 {
                Node::Bool(value) => value.to_string(),
                Node::Word(value) => format!("#x{value:08x}"),
                Node::Input(name) => name.clone(),
                Node::Apply(name, arguments) => {
                    let arguments: Vec<&str> = arguments.iter().map(|a| texts[a.0].as_str()).collect();
                    let text = format!("({name} {})", arguments.join(" "));
                    if uses[i] > 1 && i != root.0 {
                        // Writing to a string cannot fail.
                        let _ = writeln!(out, "  (let ((t{i} {text}))");
                        open += 1;
                        format!("t{i}")
                    } else {
                        text
                    }
                }
            };
            texts[i] = text;
        }
        format!("{out}  {}{}", texts[root.0], ")".repeat(open))
    }
}

/// The sort of several scalars in one bit vector, and of one alone.
pub fn packed(sorts: &[Sort]) -> Sort {
    match sorts {
        [sort] => *sort,
        _ => Sort::Bits(sorts.iter().map(|s| width(*s)).sum()),
    }
}

/// Bits of a sort in a packed bit vector.
pub fn width(sort: Sort) -> u32 {
    match sort {
        Sort::Bool => 1,
        Sort::Bits(width) => width,
    }
}

enum Folded {
    Bool(bool),
    Word(u32),
}

/// The value of an operator on words, for the operators that counters and constant shifts need.
fn fold(operator: &str, words: &[u32]) -> Option<Folded> {
    let signed = |word: u32| word as i32;
    Some(match (operator, words) {
        ("bvadd", [a, b]) => Folded::Word(a.wrapping_add(*b)),
        ("bvsub", [a, b]) => Folded::Word(a.wrapping_sub(*b)),
        ("bvand", [a, b]) => Folded::Word(a & b),
        ("bvor", [a, b]) => Folded::Word(a | b),
        ("bvxor", [a, b]) => Folded::Word(a ^ b),
        ("wgsl.mul", [a, b]) => Folded::Word(a.wrapping_mul(*b)),
        ("wgsl.udiv", [a, b]) => Folded::Word(a.checked_div(*b).unwrap_or(*a)),
        ("wgsl.urem", [a, b]) => Folded::Word(a.checked_rem(*b).unwrap_or(0)),
        ("wgsl.clz", [a]) => Folded::Word(a.leading_zeros()),
        ("bvneg", [a]) => Folded::Word(a.wrapping_neg()),
        ("bvnot", [a]) => Folded::Word(!a),
        ("bvshl", [a, b]) if *b < 32 => Folded::Word(a << b),
        ("bvlshr", [a, b]) if *b < 32 => Folded::Word(a >> b),
        ("=", [a, b]) => Folded::Bool(a == b),
        ("bvult", [a, b]) => Folded::Bool(a < b),
        ("bvule", [a, b]) => Folded::Bool(a <= b),
        ("bvslt", [a, b]) => Folded::Bool(signed(*a) < signed(*b)),
        ("bvsle", [a, b]) => Folded::Bool(signed(*a) <= signed(*b)),
        _ => return None,
    })
}
