//! The record of Debezium's outbox event router, by the names of its documentation
//! (<https://debezium.io/documentation/reference/stable/transformations/outbox-event-router.html>), and tombstones.

use super::{by_hand, copies, copies_in, relay, rows};
use crate::support::{Lab, on_each_broker, other_program};

/// Debezium's column, the lab's, and what the router makes of it by default.
const COLUMNS: &[(&str, &str, &str)] = &[
    ("id", "event_id", "the header id"),
    ("aggregatetype", "aggregate_type", "the topic outbox.event.<aggregatetype>"),
    ("aggregateid", "aggregate_id", "the key"),
    ("type", "event_type", "nothing, unless it is placed by table.fields.additional.placement"),
    ("payload", "payload", "the value"),
];

#[test]
fn every_column_that_debezium_needs_has_one_of_the_labs() {
    let lab = Lab::new();
    lab.ok("reset");
    let db = other_program(&lab.path(".lab/outbox.db"));
    for (debeziums, labs, _) in COLUMNS {
        let sql =
            "SELECT count(*) FROM pragma_table_info('outbox') WHERE name = ?1 AND \"type\" = 'TEXT' AND \"notnull\"";
        let n: i64 = db.query_row(sql, [labs], |row| row.get(0)).unwrap();
        assert_eq!(n, 1, "{labs} for {debeziums}");
    }
}

#[test]
fn a_record_in_debeziums_envelope_is_that_of_its_outbox_event_router() {
    on_each_broker("a_record_in_debeziums_envelope", |lab| {
        lab.ok("write 3");
        // A topic of this test's own on a Kafka that others use, too.
        let own = lab.path("x").parent().unwrap().file_name().unwrap().to_str().unwrap().trim_matches('.').to_owned();
        by_hand(
            lab,
            &format!(
                "UPDATE outbox SET aggregate_type = '{own}';
                 UPDATE outbox SET aggregate_type = '{own}.member' WHERE id = 2;
                 UPDATE outbox SET tombstone = 1 WHERE id = 3"
            ),
        );
        let told = relay(lab, "--envelope debezium");
        assert_eq!(told["marked"], 3);
        let loans = copies_in(lab, &format!("--topic outbox.event.{own}"));
        let payload = r#"{"eventId":"evt-1001","loanId":"L-1001","bookId":"B-101"}"#;
        let told: Vec<_> = loans.iter().map(|c| (c.key.as_str(), c.event.as_str(), c.payload.as_deref())).collect();
        assert_eq!(told, [("L-1001", "evt-1001", Some(payload)), ("L-1003", "evt-1003", None)]);
        let members = copies_in(lab, &format!("--topic outbox.event.{own}.member"));
        assert_eq!(members.iter().map(|c| c.event.as_str()).collect::<Vec<_>>(), ["evt-1002"]);
    });
}

#[test]
fn a_tombstone_is_a_record_without_a_value_whoever_sends_it() {
    on_each_broker("a_tombstone_is_a_record_without_a_value", |lab| {
        lab.ok("reset");
        lab.ok("write 4");
        by_hand(lab, "UPDATE outbox SET tombstone = 1 WHERE id IN (1, 4)");
        lab.ok("publish 2");
        relay(lab, "");
        let told: Vec<_> = copies(lab).into_iter().map(|copy| (copy.event, copy.payload.is_none())).collect();
        let wanted = [("evt-1001", true), ("evt-1002", false), ("evt-1003", false), ("evt-1004", true)];
        assert_eq!(told, wanted.map(|(event, is_null)| (event.to_owned(), is_null)));
        lab.ok("reconcile --expect 4/4/4/4");
        assert_eq!(rows(lab, "payload = ''"), [], "the payload stays in the outbox");
    });
}
