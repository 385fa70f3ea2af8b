//! Relays side by side, each with its part of the aggregates or for want of a lease none.

use nix::sys::signal::Signal;

use super::{all_marked, copies, duplicates, events, nothing_is_lost_or_out_of_order, start, told};
use crate::support::{Held, Lab, on_each_broker, wait_for};

#[test]
fn three_shards_at_once_send_each_row_once() {
    on_each_broker("three_shards_at_once_send_each_row_once", |lab| {
        lab.ok("reset --partitions 4");
        lab.ok("fill 300 --aggregates 23");
        let shard = |nth: u32| format!("--json relay --key aggregate --batch 7 --shard {nth}/3");
        let mut marked = 0;
        for ended in lab.at_once([shard(1), shard(2), shard(3)]) {
            let told = told(&ended.exits(0));
            let n = told["marked"].as_u64().unwrap();
            assert!(n > 0, "{told}");
            marked += n;
        }
        assert_eq!(marked, 300);
        let copies = copies(lab);
        assert_eq!(copies.len(), 300);
        nothing_is_lost_or_out_of_order(lab, &copies);
    });
}

#[test]
fn a_shard_says_what_it_leaves_to_the_others() {
    let lab = Lab::new();
    lab.ok("fill 64");
    let ended = lab.run("--json relay --shard 2/2").exits(0);
    let told = told(&ended);
    let (marked, left) = (told["marked"].as_u64().unwrap(), told["left"]["of_other_shards"].as_u64().unwrap());
    assert!(marked > 0 && left > 0 && marked + left == 64, "{told}");
    assert_eq!(told["left"]["leased"], 0, "nobody has leased them");
}

#[test]
fn three_relays_without_a_shard_send_each_row_once() {
    on_each_broker("three_relays_without_a_shard_send_each_row_once", |lab| {
        lab.ok("reset --partitions 4");
        lab.ok("fill 300 --aggregates 23");
        let line = "relay --key aggregate --batch 7 --follow";
        let relays = [line; 3].map(|line| start(lab, line));
        all_marked(lab);
        relays.iter().for_each(|relay| relay.signal(Signal::SIGTERM));
        for relay in relays {
            relay.end().exits(0);
        }
        let copies = copies(lab);
        assert_eq!(copies.len(), 300);
        nothing_is_lost_or_out_of_order(lab, &copies);
    });
}

/// Two relays with a shard each and one that takes over from whoever is killed; every one of them is killed in mid-work, and
/// the shards come back.
#[test]
fn relays_that_are_killed_one_after_the_other_lose_nothing_and_keep_the_order() {
    on_each_broker("relays_that_are_killed_one_after_the_other", |lab| {
        lab.ok("reset --partitions 4");
        lab.ok("fill 400 --aggregates 23");
        let lease = if lab.kafka.is_some() { "2500" } else { "600" };
        let timeout = if lab.kafka.is_some() { "2400" } else { "500" };
        let line = |options: &str| {
            format!("relay --key aggregate --batch 10 --lease {lease}ms -X message.timeout.ms={timeout} {options}")
        };
        let mut may_repeat: Vec<String> = Vec::new();
        for (shard, points) in [("1/2", ["after-ack@2", "before-mark@1"]), ("2/2", ["sent@3", "after-mark@2"])] {
            for point in points {
                let held = lab.hold(&line(&format!("--owner s --shard {shard} --hold-at {point}")));
                held.kill();
                may_repeat.extend(events(lab, "published = 0"));
            }
        }
        let held = lab.hold(&line("--follow --owner everything --hold-at before-mark@2"));
        lab.ok("write 20");
        held.kill();
        may_repeat.extend(events(lab, "published = 0"));
        let relays = ["--shard 1/2", "--shard 2/2", ""].map(|shard| start(lab, &line(&format!("--follow {shard}"))));
        lab.ok("return 20");
        all_marked(lab);
        relays.into_iter().for_each(Held::kill);
        wait_for("every lease to be over", || {
            lab.ok("stats").lines().skip(1).all(|l| l.contains("left=-")).then_some(())
        });
        let copies = copies(lab);
        nothing_is_lost_or_out_of_order(lab, &copies);
        assert!(duplicates(&copies).iter().all(|event| may_repeat.contains(event)));
    });
}
