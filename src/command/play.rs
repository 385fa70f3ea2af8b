//! `run`: plays experiments, one after the other, and judges each.

use std::mem::take;

use anyhow::Result;

use crate::experiment::{self, EXPERIMENTS, Experiment};
use crate::failure::{Exit, Failure};
use crate::lab::Lab;
use crate::output::{Line, Output};
use crate::presence::enter_to_play;
use crate::trial::process::give_back;
use crate::trial::{Receipts, Trial, can_freeze, on_interrupt};
use crate::verdict::Verdict;

pub(super) fn run(lab: &Lab, names: &[String], out: &Output) -> Result<Exit> {
    let chosen: Vec<&Experiment> = match names {
        [] => EXPERIMENTS.to_vec(),
        names => names.iter().map(|name| experiment::find(name)).collect::<Result<_>>()?,
    };
    on_interrupt()?;
    let _alone = enter_to_play(lab)?;
    let receipts = Receipts::of_new_run(lab);
    let played: Vec<(Verdict, usize)> =
        give_back(chosen.into_iter().map(|experiment| play(lab, experiment, &receipts, out)).collect())?;
    let (verdicts, skipped_parts): (Vec<_>, Vec<_>) = played.into_iter().unzip();
    let count = |wanted: fn(&Verdict) -> bool| verdicts.iter().filter(|verdict| wanted(verdict)).count();
    let mut text = format!(
        "{} experiments: {} confirmed, {} refuted, {} inconclusive, {} skipped",
        verdicts.len(),
        count(|verdict| *verdict == Verdict::Confirmed),
        count(|verdict| *verdict == Verdict::Refuted),
        count(|verdict| matches!(verdict, Verdict::Inconclusive { .. })),
        count(|verdict| matches!(verdict, Verdict::Skipped { .. })),
    );
    match skipped_parts.iter().sum() {
        0 => {}
        1 => text += "; 1 part skipped",
        n => text += &format!("; {n} parts skipped"),
    }
    out.line(&Line::Told { text: &text })?;
    Ok(Verdict::exit_of(&verdicts))
}

/// Plays one; says what it comes to, and how many parts of it were skipped.
fn play(lab: &Lab, experiment: &Experiment, receipts: &Receipts, out: &Output) -> Result<(Verdict, usize)> {
    let tell = |text: String| out.line(&Line::Told { text: &text });
    tell(format!("# {}", experiment.name))?;
    tell(format!("question   {}", experiment.question))?;
    tell(format!("predicted  {}", experiment.predicted))?;
    let mut trial = Trial::new(lab, experiment.name, receipts, out)?;
    let verdict = if let Some(why) = cannot_show(experiment, lab) {
        Verdict::Skipped { why }
    } else {
        match (experiment.play)(&mut trial).map_err(Failure::from) {
            Ok(()) => {
                let owed = trial.skipped.iter().fold(experiment.proofs, |owed, part| owed.without(part.not_owed));
                Verdict::of(owed, trial.proofs, &trial.checks)
            }
            Err(failure) if failure.exit == Exit::Inconclusive => Verdict::Inconclusive { why: failure.to_string() },
            Err(failure) => {
                trial.end()?;
                return Err(failure.into());
            }
        }
    };
    let (proved, skipped, checks) = (trial.proofs, take(&mut trial.skipped), take(&mut trial.checks));
    trial.end()?;
    let (name, judged) = (experiment.name, &verdict);
    out.line(&Line::Judged { experiment: name, verdict: judged, proved, skipped: &skipped, checks: &checks })?;
    tell(format!("lesson     {}\n", experiment.lesson))?;
    Ok((verdict, skipped.len()))
}

/// Why this broker cannot show the experiment at all.
fn cannot_show(experiment: &Experiment, lab: &Lab) -> Option<String> {
    if experiment.needs.real_kafka && lab.kafka.is_none() {
        return Some("the embedded broker cannot show it; bring up a real Kafka (scripts/kafka.sh up)".to_owned());
    }
    if experiment.needs.freezing && !can_freeze(lab) {
        return Some("the broker has to be frozen, and the lab did not start this one".to_owned());
    }
    None
}
