//! `clean`: gives back what the lab holds outside its directory.

use anyhow::Result;

use crate::broker::{Cluster, delete_made};
use crate::failure::Exit;
use crate::lab::Lab;
use crate::output::{Line, Output};
use crate::presence::enter_directory_alone;

pub(super) fn run(lab: &Lab, out: &Output) -> Result<Exit> {
    if !lab.has_dir()? {
        return Ok(Exit::Done);
    }
    let _alone = enter_directory_alone(lab)?;
    match Cluster::find(lab)? {
        Some(Cluster::Kafka(servers)) => {
            delete_made(lab, &servers, |topic| out.line(&Line::TopicDeleted { topic }))?;
        }
        Some(Cluster::Embedded(broker)) => {
            broker.stop(lab)?;
            out.line(&Line::BrokerStopped)?;
        }
        None => {}
    }
    Ok(Exit::Done)
}
