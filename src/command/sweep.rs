//! `sweep`: the book's phase table as measured.

use anyhow::Result;
use clap::ValueEnum;

use crate::failure::Exit;
use crate::lab::Lab;
use crate::output::{Line, Output, hint};
use crate::presence::enter_to_play;
use crate::sweep::{Strategy, Sweep, Swept, head, judge};
use crate::trial::Receipts;
use crate::trial::process::{give_back, on_interrupt};
use crate::verdict::Verdict;

pub(super) fn run(lab: &Lab, strategies: &[Strategy], rows: u32, bare: Option<u32>, out: &Output) -> Result<Exit> {
    on_interrupt()?;
    let _alone = enter_to_play(lab)?;
    let strategies = if strategies.is_empty() { Strategy::value_variants() } else { strategies };
    let sweep = Sweep { lab, strategies, rows, receipts: &Receipts::of_new_run(lab) };
    if let Some(kills) = bare {
        let seconds = give_back(sweep.bare(kills))?;
        hint(&format!("{kills} kills in {seconds:.3} s, {:.0} a second", f64::from(kills) / seconds));
        return Ok(Exit::Done);
    }
    let Swept { rows: matrix, seconds } = give_back(sweep.play())?;
    out.told(&head())?;
    for row in &matrix {
        out.line(&Line::Swept(row))?;
    }
    let natures: Vec<_> = strategies.iter().map(|strategy| (strategy.name(), strategy.nature())).collect();
    let verdict = judge(&matrix, &natures);
    let kills: u32 = matrix.iter().map(|row| row.kills).sum();
    hint(&format!("{kills} kills in {seconds:.3} s, {:.0} a second", f64::from(kills) / seconds));
    let passages = matrix.iter().map(|row| row.passages).sum();
    out.line(&Line::SweptAll { kills, passages, verdict: &verdict })?;
    Ok(Verdict::exit_of(&[verdict]))
}
