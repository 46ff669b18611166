//! The inspection of the monitoring demo: plan, draw, logs, matches, rules, audits and statements, by commands.

use std::path::Path;

use serde_json::Value;

use super::commands::{Commands, line, words};
use super::folder::copy_log;
use super::found::{Found, Inspected, Limit, Stated, text};
use super::scenario::{CONFIDENCE, DAYS, END, Operator, RATE, Seed};
use crate::cli::view::report::{Failure, Printer};
use tiebreak_record::commit::digest::Digest;

/// Inspects the month. The folder has the register, the heads, the logs, the declared runs, the rules and the keys.
///
/// # Errors
/// If a command fails.
pub fn inspect(
    printer: Printer,
    folder: &Path,
    operators: &[Operator],
    limit: Limit,
    seed: Seed,
) -> Result<Found, Failure> {
    let commands = Commands::new(printer, folder)?;
    printer.say(format!(
        "3. The plan: how many chips to sample, so that a hidden run of {:.3e} FLOP is found with probability {CONFIDENCE}",
        limit.flop as f64
    ));
    let plan = commands.shown(
        &words(&format!(
            "monitor plan --chips {} --run {} --days {DAYS} --rate {RATE} --period {DAYS} --confidence {CONFIDENCE} \
             --flop-per-second {} --picture plan.svg",
            limit.fleet, limit.flop, limit.chip
        )),
        "plan.json",
    )?;
    let samples = plan["drawn"].as_u64().unwrap_or_default();
    let probability = plan["found"]["exact"].as_f64().unwrap_or_default();
    printer.say(format!(
        "  such a run needs {} chips: {samples} of {} chips find it with probability {probability:.4}",
        plan["run"]["chips"].as_f64().unwrap_or_default(),
        limit.fleet
    ));
    printer.say("4. The draw, from a beacon's value that came after the heads of all logs were published");
    let beacon = Digest(seed.bytes("beacon")).to_string();
    let draw = words(&format!(
        "monitor draw --register chips.register --registrar keys/registrar.pub --closed heads.txt --chips {samples} \
         --date {} --round demo-seed-{} --beacon {beacon} --out draw.json",
        END.1, seed.0
    ));
    let drawn = commands.shown(&draw, "drawn.json")?;
    let drawn: Vec<String> = drawn["draw"]["chips"].as_array().into_iter().flatten().map(text).collect();
    printer.say(format!("  drawn: {}", drawn.join(", ")));
    let mut found = Found { samples, probability, drawn, beacon, operators: Vec::new() };
    logs(printer, &commands, folder, operators, &mut found, limit)?;
    matches(printer, &commands, operators, &mut found)?;
    statements(printer, &commands, operators, &mut found)?;
    Ok(found)
}

/// Inspects the drawn logs, each by itself.
fn logs(
    printer: Printer,
    commands: &Commands,
    folder: &Path,
    operators: &[Operator],
    found: &mut Found,
    limit: Limit,
) -> Result<(), Failure> {
    printer.say(
        "5. The drawn logs: who signed them, whether they are whole, whether the chip logs often enough",
    );
    let bar = printer.bar(found.drawn.len() as u64, "logs");
    let mut shown = false;
    for operator in operators {
        let own = format!("{}-", operator.name.to_uppercase());
        let mut drawn: Vec<String> =
            found.drawn.iter().filter(|chip| chip.starts_with(&own)).cloned().collect();
        drawn.sort();
        let mut defects = 0;
        for chip in &drawn {
            let log = copy_log(folder, &operator.file(), chip)?;
            let inspect = words(&format!(
                "monitor inspect {log} --register chips.register --registrar keys/registrar.pub --serial {chip} \
                 --closed heads.txt --rate {RATE} --until {}",
                END.1
            ));
            let keep = format!("inspections/{chip}.json");
            let result = match shown {
                true => commands.run(&inspect, Some(&keep))?,
                false => commands.shown(&inspect, &keep)?,
            };
            shown = true;
            defects += result["findings"].as_array().map_or(0, Vec::len);
            bar.advance();
        }
        found.operators.push(Inspected {
            drawn,
            matched: None,
            rules: Value::Null,
            defects,
            audited: true,
            statements: Vec::new(),
            limit: limit.flop as f64,
        });
    }
    bar.finish_and_clear();
    let defects: usize = found.operators.iter().map(|operator| operator.defects).sum();
    printer.say(format!(
        "  so each of the {} logs: {}",
        found.drawn.len(),
        if defects == 0 { "no defect".to_string() } else { format!("DIFFERS: {defects} defects") }
    ));
    Ok(())
}

/// Compares the logs with the declared runs, and holds these to the rules.
fn matches(
    printer: Printer,
    commands: &Commands,
    operators: &[Operator],
    found: &mut Found,
) -> Result<(), Failure> {
    printer
        .say("6. Every snapshot of the drawn chips against the declared runs, and these against the limit");
    for (operator, inspected) in operators.iter().zip(&mut found.operators) {
        let file = operator.file();
        let runs: Vec<String> = operator.declared().map(|run| format!("runs/{}", run.name)).collect();
        if !inspected.drawn.is_empty() {
            let mut matching = words("monitor match");
            matching.extend(inspected.drawn.iter().map(|chip| format!("drawn/{file}/{chip}.log")));
            let mut more: Vec<String> =
                runs.iter().flat_map(|run| ["--run".to_string(), run.clone()]).collect();
            more.extend(words(&format!(
                "--register chips.register --registrar keys/registrar.pub --trainer-key keys/{file}.pub --witness keys/witness.pub"
            )));
            matching.extend(more.iter().cloned());
            commands.say(&format!("monitor match drawn/{file}/*.log {}", line(&more)));
            inspected.matched = Some(commands.run(&matching, Some(&format!("matches/{file}.json")))?);
        }
        let mut rules = words("monitor rules");
        rules.extend(runs);
        rules.push("rules.toml".into());
        inspected.rules = commands.shown(&rules, &format!("rules/{file}.json"))?;
        printer.say(format!("  {}: {}", operator.name, inspected.sentence()));
    }
    Ok(())
}

/// Replays the declared runs, and states about each what was found.
fn statements(
    printer: Printer,
    commands: &Commands,
    operators: &[Operator],
    found: &mut Found,
) -> Result<(), Failure> {
    printer.say("7. Every declared run is replayed on the CPU, and a signed statement says what was found");
    let mut shown = false;
    for (operator, inspected) in operators.iter().zip(&mut found.operators) {
        let file = operator.file();
        for run in operator.declared() {
            let name = run.name;
            let audit = words(&format!(
                "audit runs/{name} --trainer-key keys/{file}.pub --verdict audits/{name}-verdict.json \
                 --report audits/{name}.json --key keys/inspector"
            ));
            let mut state = words(&format!(
                "monitor statement --report audits/{name}.json --rules rules/{file}.json --key keys/inspector \
                 --out statements/{name}.dsse.json"
            ));
            if inspected.matched.is_some() {
                state.extend(words(&format!("--match matches/{file}.json")));
            }
            state.extend(words(
                "--draw draw.json --register chips.register --registrar keys/registrar.pub --closed heads.txt --owner",
            ));
            state.push(operator.name.into());
            if !shown {
                commands.say(&line(&audit));
                commands.say(&format!("{} --inspection inspections/CHIP.json ...", line(&state)));
            }
            shown = true;
            let inspections = inspected.drawn.iter().map(|chip| format!("inspections/{chip}.json"));
            state.extend(inspections.flat_map(|path| ["--inspection".to_string(), path]));
            inspected.audited &= commands.run(&audit, None)?["outcome"]["result"] == "matches";
            let said = &commands.run(&state, None)?["statement"]["predicate"];
            inspected.statements.push(Stated {
                file: format!("statements/{name}.dsse.json"),
                chips: text(&said["draw"]["text"]),
                audits: text(&said["audits"]["text"]),
                matched: text(&said["match"]["result"]),
                rules: text(&said["rules"]["result"]),
            });
        }
    }
    for (operator, inspected) in operators.iter().zip(&found.operators) {
        let said = inspected.statements.first().map_or("", |stated| &stated.chips);
        printer.say(format!("  {}: {said}", operator.name));
    }
    let count: usize = found.operators.iter().map(|operator| operator.statements.len()).sum();
    let audited = found.operators.iter().all(|operator| operator.audited);
    printer.say(format!(
        "  so each of {count} declared runs: {}",
        if audited { "replayed bit for bit" } else { "DIFFERS: a replay gives other bits" }
    ));
    Ok(())
}
