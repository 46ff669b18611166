//! The command `machine-code`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use machine_code::generations::{self, Generation};
use machine_code::{Error, table};

/// Compile WGSL shaders for AMD's GPUs with Mesa's RADV driver, on a machine without one, and print a table of statistics and
/// faults. The exit status is 1 if a shader spills, has scratch memory, more than 32 KiB of code, or a float instruction that may
/// round. The status is 2 if a shader does not compile.
#[derive(Parser)]
#[command(after_help = "Example: tiebreak shaders assets/jobs/demo.toml --dump shaders-out\n         \
                        machine-code shaders-out --without words --generations polaris10,navi21")]
struct Args {
    /// Shaders, or folders of shaders (as `tiebreak shaders --dump` writes them).
    #[arg(required = true)]
    shaders: Vec<PathBuf>,
    /// GPUs as RADV_FORCE_FAMILY names them, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "polaris10,vega10,navi10,navi21,gfx1100")]
    generations: Vec<String>,
    /// Leave out shaders whose names contain this text. The `words` variant of a product is meant for no GPU.
    #[arg(long)]
    without: Option<String>,
    /// Compile for the first device of this machine that reports its machine code, instead.
    #[arg(long, conflicts_with_all = ["generations", "keep"])]
    here: bool,
    /// Write the assembly of each shader to this folder.
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Print everything, assembly included, as JSON.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

/// True if every shader passes.
fn run(args: &Args) -> Result<bool, Error> {
    let mut shaders = generations::read(&args.shaders)?;
    shaders.retain(|(name, _)| args.without.as_ref().is_none_or(|part| !name.contains(part)));
    let all = if args.here {
        vec![(None, generations::here(&shaders)?)]
    } else {
        let program =
            std::env::current_exe().map_err(|error| Error::File { path: "this program".into(), error })?;
        let compiled = generations::compile_all(&program, &args.generations, &shaders)?;
        args.generations.iter().cloned().map(Some).zip(compiled).collect()
    };
    if let Some(folder) = &args.keep {
        keep(folder, &all)?;
    }
    let faults = all.iter().map(|(_, generation)| generation.faults().len()).sum::<usize>();
    if args.json {
        let all: Vec<&Generation> = all.iter().map(|(_, generation)| generation).collect();
        println!("{}", serde_json::to_string(&all).expect("strings and numbers are JSON"));
        return Ok(faults == 0);
    }
    println!("{}", table::header());
    for (name, generation) in &all {
        let name = name.as_ref().unwrap_or(&generation.device);
        generation
            .shaders
            .iter()
            .for_each(|(shader, compiled)| println!("{}", table::line(name, shader, compiled)));
    }
    println!();
    for (_, generation) in &all {
        println!("{}, {}: {} shaders", generation.device, generation.driver, generation.shaders.len());
        generation.faults().iter().for_each(|fault| println!("  {fault}"));
    }
    println!("{faults} faults");
    Ok(faults == 0)
}

fn keep(folder: &std::path::Path, all: &[(Option<String>, Generation)]) -> Result<(), Error> {
    let unwritten = |path: &std::path::Path| {
        let path = path.display().to_string();
        move |error| Error::File { path, error }
    };
    std::fs::create_dir_all(folder).map_err(unwritten(folder))?;
    for (name, generation) in all {
        for (shader, compiled) in &generation.shaders {
            let path = folder.join(format!("{}-{shader}.s", name.as_ref().unwrap_or(&generation.device)));
            std::fs::write(&path, &compiled.assembly).map_err(unwritten(&path))?;
        }
    }
    Ok(())
}
