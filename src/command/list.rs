//! `list` and `explain`: the experiments, from the registry.

use anyhow::Result;

use crate::experiment::{self, EXPERIMENTS};
use crate::failure::Exit;
use crate::output::{Line, Output};

pub(super) fn list(out: &Output) -> Result<Exit> {
    for experiment in EXPERIMENTS {
        out.buffered(&Line::Listed { experiment: experiment.name, question: experiment.question })?;
    }
    out.flush()?;
    Ok(Exit::Done)
}

pub(super) fn explain(name: &str, out: &Output) -> Result<Exit> {
    let experiment = experiment::find(name)?;
    let mut lines = vec![
        format!("# {}", experiment.name),
        format!("question   {}", experiment.question),
        format!("the book   {}", experiment.claim),
    ];
    lines.extend(experiment.steps.iter().enumerate().map(|(nth, step)| format!("step {}     {step}", nth + 1)));
    lines.push(format!("predict    {}", experiment.predicted));
    lines.push(format!("lesson     {}", experiment.lesson));
    for text in &lines {
        out.buffered(&Line::Told { text })?;
    }
    out.flush()?;
    Ok(Exit::Done)
}
