//! `clean`: gives back what the lab holds outside its directory.

use anyhow::Result;

use crate::broker::{delete_topic, embedded, made_topics};
use crate::failure::Exit;
use crate::lab::Lab;
use crate::output::{Line, Output};

pub(super) fn run(lab: &Lab, out: &Output) -> Result<Exit> {
    match &lab.kafka {
        Some(servers) => {
            for topic in made_topics(lab, servers)? {
                delete_topic(lab, servers, &topic)?;
                out.line(&Line::TopicDeleted { topic: &topic })?;
            }
        }
        None => {
            if let Some(broker) = embedded::find(lab)? {
                broker.stop(lab)?;
                out.line(&Line::BrokerStopped)?;
            }
        }
    }
    Ok(Exit::Done)
}
