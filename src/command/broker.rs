//! `broker start`, `stop` and `status`: the embedded broker.

use std::time::Duration;

use anyhow::Result;

use crate::broker::{embedded, serve};
use crate::cli::Broker;
use crate::failure::{Exit, Failure};
use crate::lab::Lab;
use crate::output::{Line, Output, hint};

pub(super) fn run(lab: &Lab, command: &Broker, out: &Output) -> Result<Exit> {
    if let (Some(servers), false) = (&lab.kafka, matches!(command, Broker::Serve { .. })) {
        return Err(Failure::usage(
            format!("this lab uses the Kafka at {servers}, not the embedded broker"),
            "leave --bootstrap and KAFKA_BOOTSTRAP unset; a real Kafka is brought up by scripts/kafka.sh",
        ));
    }
    match command {
        Broker::Start => {
            let broker = embedded::ensure_with_topic(lab)?;
            out.line(&Line::BrokerUp { bootstrap: &broker.bootstrap })?;
            hint(&format!(
                "the embedded broker is pid {}. kcat and confluent-kafka can read it; Java clients and kafka-python 3 \
                 find no topic on it: scripts/kafka.sh brings up a Kafka for those",
                broker.pid
            ));
        }
        Broker::Status => match embedded::find(lab)? {
            Some(broker) => {
                out.line(&Line::BrokerUp { bootstrap: &broker.bootstrap })?;
                hint(&format!("the embedded broker is pid {}", broker.pid));
            }
            None => out.line(&Line::BrokerDown)?,
        },
        Broker::Stop => match embedded::find(lab)? {
            Some(broker) => {
                broker.stop(lab)?;
                out.line(&Line::BrokerStopped)?;
            }
            None => out.line(&Line::BrokerDown)?,
        },
        Broker::Serve { idle } => serve(lab, Duration::from_secs(*idle))?,
    }
    Ok(Exit::Done)
}
