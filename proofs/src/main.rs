//! `wgsl-smt`: functions of a shader as SMT-LIB definitions, from the text that runs on GPUs.
//!
//! A word is a bit vector of 32. A vector, array or struct is one bit vector, its first scalar lowest, so that a `vec2<u32>`
//! (low, high) is the 64-bit number that it represents. Products of words are `wgsl.mul`, which a theorem defines or leaves open.

mod body;
mod bounds;
mod globals;
mod interval;
mod memory;
mod parse;
mod product;
mod refusal;
mod term;
mod types;
mod values;
mod writer;

use std::collections::HashMap;
use std::process::ExitCode;

use parse::{composed, validated};
use refusal::Refusal;

const USAGE: &str = "wgsl-smt prints functions of a shader as SMT-LIB.

usage: wgsl-smt SHADER [FUNCTION | --abstract FUNCTION | --cut FUNCTION | --kernel | --kernel-cut | OPTION]...
       wgsl-smt product.wgsl | product_words.wgsl --bounds [--replace OLD NEW]...

  SHADER               a file under shaders/, its includes expanded
  FUNCTION             define it and all that it calls
  --abstract FUNCTION  declare it only, where it is called
  --cut FUNCTION       define it with its first loop cut open: .reached, .enter, .exits, .step, .after
  --kernel             define what the entry point does to each array A: A.read, A.written, A.after
  --kernel-cut         the same, with its first loop cut open
  --word NAME VALUE    a word of the kernel's uniform, as p.0.x
  --choice V A B BITS  complete the product's template: a variant, both digit counts, bits of a sum
  --bounds             instead: the product's shader SHADER holds its sums exactly, for every pair of digit counts
  --replace OLD NEW    change the shader's text first (a planted fault); OLD must occur exactly once

example: wgsl-smt shared/float.wgsl f_add --replace 'xe == 255u' 'xe == 254u'";

#[derive(Default)]
struct Request {
    shader: String,
    functions: Vec<String>,
    cuts: Vec<String>,
    abstracted: Vec<String>,
    replacements: Vec<(String, String)>,
    bounds: bool,
    kernel: bool,
    kernel_cut: bool,
    words: HashMap<String, u32>,
    choice: Vec<String>,
}

fn request(mut words: impl Iterator<Item = String>) -> Option<Request> {
    let mut request = Request { shader: words.next().filter(|s| !s.starts_with('-'))?, ..Default::default() };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--abstract" => request.abstracted.push(words.next()?),
            "--cut" => request.cuts.push(words.next()?),
            "--bounds" => request.bounds = true,
            "--kernel" => request.kernel = true,
            "--kernel-cut" => request.kernel_cut = true,
            "--word" => {
                request.words.insert(words.next()?, words.next()?.parse().ok()?);
            }
            "--choice" => request.choice = (0..4).map_while(|_| words.next()).collect(),
            "--replace" => request.replacements.push((words.next()?, words.next()?)),
            option if option.starts_with('-') => return None,
            _ => request.functions.push(word),
        }
    }
    Some(request)
}

/// A text with faults planted in it.
fn replaced(request: &Request, mut text: String) -> Result<String, Refusal> {
    for (old, new) in &request.replacements {
        let count = text.matches(old.as_str()).count();
        if count != 1 {
            return Err(Refusal(format!("`{old}` occurs {count} times in {}, not once", request.shader)));
        }
        text = text.replace(old.as_str(), new);
    }
    Ok(text)
}

fn translate(request: Request) -> Result<String, Refusal> {
    let mut text = composed(&request.shader)?;
    if !request.choice.is_empty() {
        text = product::completed(&text, &request.choice)?;
    }
    let text = replaced(&request, text)?;
    if request.bounds {
        return product::bounds(&request.shader, &text);
    }
    let (module, info) = validated(&request.shader, &text)?;
    let mut writer = writer::Writer::new(&module, &info, request.abstracted);
    request.functions.iter().try_for_each(|name| writer.function(name))?;
    request.cuts.iter().try_for_each(|name| writer.cut(name))?;
    if request.kernel || request.kernel_cut {
        writer.kernel(request.words, request.kernel_cut)?;
    }
    Ok(format!("{}\n{}", writer::PRELUDE, writer.out))
}

fn main() -> ExitCode {
    let Some(request) = request(std::env::args().skip(1)) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match translate(request) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(Refusal(text)) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}
