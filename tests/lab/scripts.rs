//! run.sh and the scripts as a participant uses them, and with labs that they must condemn.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};

use crate::support::{
    BINARY, DEADLINE, Ended, Held, Lab, ROOT, all_to_their_ends, bytes, not_run, on_each_broker, other_program,
    wait_for,
};

const PASS: &str = "PASS: what was printed is what expected/ has: chapter\n";

const RECONCILED: &str = "\
business rows       5
outbox rows         5
Kafka records       8
distinct event ids  5
more than once      evt-1001 x2
more than once      evt-1002 x2
more than once      evt-1003 x2
RECONCILED: 5/5/8/5
";

/// The lab of these tests' scripts, made to say into what topics it writes.
const TELLS_TOPICS: &str = r#"echo "$OUTBOX_LAB_TOPIC" >>"$here/topics""#;

/// Shell lines that end their process by `death`, and say `says` only when it has ended, whether or not it was waited for:
/// however soon the kill follows, it comes too late.
pub fn dead_before_it_says(says: &str, death: &str) -> String {
    format!(
        "(
          while kill -0 $$ 2>/dev/null && ! ps -o stat= -p $$ | grep -q '^Z'; do sleep 0.01; done
          {says}
        ) &
        {death}"
    )
}

/// A write-hold whose process is dead before its HOLD line is read.
fn kill_misses() -> String {
    let says = r#"echo "[write] txn i=1 loan=L-1001 event=evt-1001 committed business=1 outbox=1"
        echo "[write] committed all, HOLD before publish; kill -9 me""#;
    format!("case $1 in write-hold) {} ;; esac", dead_before_it_says(says, "exit 0"))
}

/// A relay that marks before it sends.
const MARKS_FIRST: &str = r#"
for word in "$@"; do
  if [ "$word" = publish ]; then
    exec "$real" "$@" --mark-first
  fi
done
"#;

/// The scripts, and the lab that they play with.
pub struct Stage<'a> {
    pub lab: &'a Lab,
    /// The project, or a copy of it for scripts that write into it.
    project: PathBuf,
    /// The lab under test. Each stage has one under a path of its own, by which its processes are known.
    pub program: PathBuf,
}

impl<'a> Stage<'a> {
    pub fn new(lab: &'a Lab) -> Self {
        fs::create_dir(lab.path("bin")).unwrap();
        fs::create_dir(lab.path("a tmp")).unwrap();
        let program = lab.path("bin/outbox-lab");
        if fs::hard_link(BINARY, &program).is_err() {
            shell("cp \"$1\" \"$2\"", &[Path::new(BINARY), &program], "");
        }
        Self { lab, project: ROOT.into(), program }
    }

    /// On a copy of the project's scripts, which a test may change.
    fn in_a_copy(mut self) -> Self {
        let root = self.project;
        self.project = self.lab.path("a copy");
        fs::create_dir(&self.project).unwrap();
        for name in ["run.sh", "scripts", "expected"] {
            shell("cp -R \"$1\" \"$2\"", &[&root.join(name), &self.project], "");
        }
        self
    }

    /// With another lab: a script that does its own thing, or else what the real one does, in which it ends.
    pub fn with_lab(mut self, script: &str) -> Self {
        let real = self.program;
        self.program = self.lab.path("bin/other-lab");
        let (here, real) = (self.lab.path(""), real.display());
        let text =
            format!("#!/usr/bin/env bash\nreal='{real}'\nhere='{}'\n{script}\nexec \"$real\" \"$@\"\n", here.display());
        shell("cat >\"$1\" && chmod +x \"$1\"", &[&self.program], &text);
        self
    }

    /// A command line of the project, such as `./run.sh verify`, to be run in the lab's folder.
    fn command(&self, line: &str) -> Command {
        let mut words = line.split_whitespace();
        let script = words.next().unwrap();
        let script = self.project.join(script.strip_prefix("./").unwrap_or(script));
        let mut command = self.lab.program(script, words);
        command.env("OUTBOX_LAB_BIN", &self.program).env("TMPDIR", self.lab.path("a tmp"));
        command
    }

    fn run(&self, line: &str) -> Ended {
        Ended::of(line, self.command(line).output().unwrap())
    }

    fn golden(&self) -> PathBuf {
        self.project.join("expected/chapter.txt")
    }

    /// A wrong digit in the golden transcript.
    fn spoil_golden(&self) {
        let golden = fs::read_to_string(self.golden()).unwrap();
        let spoiled = golden.replace("published=5 records=8", "published=5 records=9");
        assert_ne!(spoiled, golden);
        fs::write(self.golden(), spoiled).unwrap();
    }

    /// The processes of this stage: command lines with its lab or its temporary folder in them.
    pub fn processes(&self) -> Vec<String> {
        let all = Command::new("ps").args(["-axww", "-o", "pid=,stat=,command="]).output().unwrap().stdout;
        let own = ["bin/", "a tmp/", ".lab/trials/"]
            .map(|folder| self.lab.path(folder))
            .map(|folder| folder.display().to_string());
        let is_own = |line: &&str| own.iter().any(|folder| line.contains(folder));
        String::from_utf8_lossy(&all).lines().filter(is_own).map(str::to_owned).collect()
    }

    /// Asserts that no process is left and nothing in TMPDIR; and on a real Kafka, where the lab
    /// [tells its topics](TELLS_TOPICS), none of those.
    #[track_caller]
    fn leaves_nothing(&self) {
        // Who was killed may still be on its way out, and a broker whose directory is gone looks for it once a second.
        wait_for("the end of every process", || self.processes().is_empty().then_some(()));
        assert_eq!(names(&self.lab.path("a tmp")), [""; 0]);
        if let (Some((servers, _)), Ok(told)) = (&self.lab.kafka, fs::read_to_string(self.lab.path("topics"))) {
            assert!(told.lines().all(|topic| topic.starts_with("v2c7.outbox.")), "{told}");
            let left: Vec<_> =
                topics(servers).into_iter().filter(|topic| told.lines().any(|line| line == topic)).collect();
            assert_eq!(left, [""; 0]);
        }
    }
}

/// Runs a line of shell. Also what writes programs: a file that this process had open for writing could not be
/// executed while a child that another test forks at that moment has it open, too.
#[track_caller]
fn shell(line: &str, args: &[&Path], input: &str) {
    let mut child = Command::new("sh").args(["-c", line, "sh"]).args(args).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{line}");
}

/// What lies in a folder, by name.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The topics of a cluster.
pub fn topics(servers: &str) -> Vec<String> {
    let client: BaseConsumer = ClientConfig::new().set("bootstrap.servers", servers).create().unwrap();
    client.fetch_metadata(None, DEADLINE).unwrap().topics().iter().map(|topic| topic.name().to_owned()).collect()
}

/// A folder with these tools in it, and no others, for PATH.
fn tools(lab: &Lab, folder: &str, tools: &[&str]) -> PathBuf {
    let path = lab.path(folder);
    fs::create_dir(&path).unwrap();
    for tool in tools {
        symlink(tool_path(tool).unwrap(), path.join(tool)).unwrap();
    }
    path
}

/// Where a tool is.
pub fn tool_path(tool: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH").unwrap()).map(|folder| folder.join(tool)).find(|path| path.exists())
}

#[test]
fn the_whole_scenario_passes_and_leaves_nothing() {
    on_each_broker("the_whole_scenario_passes_and_leaves_nothing", |lab| {
        // The caller's own lab, and an environment that names it.
        lab.ok("reset");
        lab.ok("write 2");
        let before = (names(&lab.path(".lab")), bytes(&lab.path(".lab/outbox.db")));
        let stage = Stage::new(lab).with_lab(TELLS_TOPICS);
        let mut run = stage.command("./run.sh --chapter");
        run.env("OUTBOX_LAB_DIR", lab.path(".lab")).env("OUTBOX_LAB_DB", lab.path(".lab/outbox.db"));
        let run = Ended::of("./run.sh", run.output().unwrap()).exits(0);
        let golden = fs::read_to_string(stage.golden()).unwrap();
        assert_eq!(run.stdout, golden + PASS);
        stage.leaves_nothing();
        let told = fs::read_to_string(lab.path("topics")).unwrap();
        let mut told: Vec<_> = told.lines().collect();
        told.dedup();
        assert_eq!(told, [told[0], &format!("{}.second", told[0])]);
        assert_eq!((names(&lab.path(".lab")), bytes(&lab.path(".lab/outbox.db"))), before);
        assert_eq!(lab.counts(), [2, 2, 0, 2]);
    });
}

#[test]
fn two_scenarios_at_once_both_pass() {
    on_each_broker("two_scenarios_at_once_both_pass", |lab| {
        let stage = Stage::new(lab);
        let both = [(); 2].map(|()| Held::start("./run.sh", stage.command("./run.sh --chapter")));
        for run in both {
            run.end().exits(0).ends_in("PASS");
        }
        stage.leaves_nothing();
    });
}

#[test]
fn a_spoiled_golden_turns_it_red_and_shows_both_lines() {
    let lab = Lab::new();
    let stage = Stage::new(&lab).in_a_copy();
    stage.spoil_golden();
    stage
        .run("./run.sh --chapter")
        .exits(1)
        .prints("\n@@ ")
        .prints("\n-[reconcile] business_loan=5 outbox=5 published=5 records=9 distinct_event_ids=5\n")
        .prints("\n+[reconcile] business_loan=5 outbox=5 published=5 records=8 distinct_event_ids=5\n")
        .ends_in("FAIL");
    stage.leaves_nothing();
}

#[test]
fn a_golden_that_is_not_there_is_no_pass() {
    let lab = Lab::new();
    let stage = Stage::new(&lab).in_a_copy();
    for content in [Some(""), None] {
        match content {
            Some(content) => fs::write(stage.golden(), content).unwrap(),
            None => fs::remove_file(stage.golden()).unwrap(),
        }
        stage.run("./run.sh --chapter").exits(1).ends_in("FAIL");
    }
}

#[test]
fn a_relay_that_marks_before_it_sends_turns_the_run_red() {
    on_each_broker("a_relay_that_marks_before_it_sends_turns_the_run_red", |lab| {
        let stage = Stage::new(lab).with_lab(MARKS_FIRST);
        stage
            .run("./run.sh --chapter")
            .exits(1)
            .prints("+[reconcile] expected 5/5/6/5, found 5/5/5/5\n")
            .ends_in("FAIL");
        stage.leaves_nothing();
    });
}

#[test]
fn a_consume_that_drops_a_line_is_condemned_by_the_scripts_own_counting() {
    let lab = Lab::new();
    lab.play_chapter();
    let drops = r#"
        case "$*" in
          *consume)
            "$real" "$@" | sed 2d
            exit "${PIPESTATUS[0]}"
            ;;
        esac
    "#;
    let stage = Stage::new(&lab).with_lab(drops);
    lab.ok("reconcile --expect 5/5/8/5");
    stage.run("scripts/reconcile.sh").exits(1).ends_in("MISMATCH: expected 5/5/8/5, found 5/5/7/5");
    stage.run("./run.sh --chapter").exits(1).prints("\n+MISMATCH: expected 5/5/8/5, found 5/5/7/5\n").ends_in("FAIL");
    stage.leaves_nothing();
}

#[test]
fn a_lab_that_reconciles_to_whatever_is_expected_is_condemned_all_the_same() {
    let lab = Lab::new();
    let flatters = r#"
        case "$1 $2" in
          "write-hold 5") exec "$real" write-hold 4 ;;
          "reconcile --expect") echo "[reconcile] $3 as expected"; exit 0 ;;
        esac
    "#;
    let stage = Stage::new(&lab).with_lab(flatters);
    stage.run("./run.sh --chapter").exits(1).prints("\n+MISMATCH: expected 5/5/8/5, found 4/4/7/4\n").ends_in("FAIL");
    stage.leaves_nothing();
}

#[test]
fn a_kill_that_misses_is_inconclusive() {
    let lab = Lab::new();
    let stage = Stage::new(&lab).with_lab(&kill_misses());
    stage.run("./run.sh --chapter").exits(3).says("the kill missed").ends_in("INCONCLUSIVE");
    stage.leaves_nothing();
}

#[test]
fn a_hold_that_is_never_reached_is_inconclusive() {
    for never_holds in [
        r#"case $1 in write-hold) "$real" write "$2"; exit 0 ;; esac"#,
        // What the real one says of a hold that it did not come to.
        r#"case $1 in publish-hold) exec "$real" publish 3 --hold-at after-ack@9 ;; esac"#,
    ] {
        let lab = Lab::new();
        let stage = Stage::new(&lab).with_lab(never_holds);
        stage.run("./run.sh --chapter").exits(3).says("came to no HOLD").ends_in("INCONCLUSIVE");
        stage.leaves_nothing();
    }
}

#[test]
fn a_lab_that_cannot_do_it_is_neither_right_nor_wrong() {
    for cannot in [
        "exit 4",
        r#"case "$*" in "--db naive.db naive-hold") exit 4 ;; esac"#,
        r#"case $1 in rollback) exit 4 ;; esac"#,
        r#"case $1 in publish-hold) exit 4 ;; esac"#,
        r#"case $1 in consume) exit 4 ;; esac"#,
    ] {
        let lab = Lab::new();
        let stage = Stage::new(&lab).with_lab(cannot);
        stage.run("./run.sh --chapter").exits(4).ends_in("FAIL: chapter: the lab could not play to the end");
        stage.leaves_nothing();
    }
}

#[test]
fn a_lab_that_is_not_there_is_named() {
    let lab = Lab::new();
    let mut stage = Stage::new(&lab);
    stage.program = lab.path("bin/no-such-lab");
    for line in ["./run.sh", "./run.sh verify"] {
        stage.run(line).exits(4).says("bin/no-such-lab");
    }
    stage.leaves_nothing();
}

#[test]
fn nowhere_to_play_is_said() {
    let lab = Lab::new();
    let stage = Stage::new(&lab);
    fs::remove_dir(lab.path("a tmp")).unwrap();
    stage.run("./run.sh --chapter").exits(4).ends_in("FAIL: there is no folder to play in");
}

#[test]
fn a_lab_named_by_a_relative_path_is_the_callers() {
    let lab = Lab::new();
    let mut stage = Stage::new(&lab);
    stage.program = "bin/outbox-lab".into();
    stage.run("./run.sh --chapter").exits(0).ends_in("PASS");
    stage.run("./run.sh verify").exits(4).says("there is no lab database");
    stage.leaves_nothing();
}

#[test]
fn a_cdpath_of_the_callers_leads_nowhere() {
    let lab = Lab::new();
    let stage = Stage::new(&lab).in_a_copy();
    fs::create_dir_all(stage.project.join("target/release")).unwrap();
    fs::rename(&stage.program, stage.project.join("target/release/outbox-lab")).unwrap();
    let mut reconcile = lab.program("bash", ["scripts/reconcile.sh"]);
    reconcile.current_dir(&stage.project).env("CDPATH", ".");
    Ended::of("bash scripts/reconcile.sh", reconcile.output().unwrap()).exits(4).says("there is no lab database");
}

/// Wherever Ctrl-C or another signal comes, which hits everything that the terminal runs.
#[test]
fn a_signal_in_the_middle_ends_it_with_nothing_left() {
    on_each_broker("a_signal_in_the_middle_ends_it_with_nothing_left", |lab| {
        // In a command of the scenario's own, in one that it started in the background and waits for, and in one of
        // reconcile.sh, whose output goes into a variable.
        for command in ["rollback", "publish-hold", "consume"] {
            for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
                // Its standard output stays open, and nothing comes.
                let stands_still = format!(
                    r#"{TELLS_TOPICS}
                    if [ "$1" = {command} ]; then exec "$real" verify --hold-at before-count 3>&1 >/dev/null; fi"#
                );
                let mut own = Lab::new();
                own.kafka.clone_from(&lab.kafka);
                let stage = Stage::new(&own).with_lab(&stands_still);
                let mut run = stage.command("./run.sh --chapter");
                run.process_group(0);
                let run = Held::start("./run.sh", run);
                let group = Group(run.pid());
                run.until_says("held at before-count");
                killpg(group.0, signal).unwrap();
                let ended = run.end().exits(code);
                assert!(!ended.stdout.contains("PASS") && !ended.stdout.contains("FAIL"), "{ended:#?}");
                stage.leaves_nothing();
            }
        }
    });
}

/// So would a broker be left that comes up when its starter was killed and `clean` has found none.
#[test]
fn a_broker_whose_starter_has_died_does_not_stay() {
    let lab = Lab::new();
    lab.ok("write 1");
    let serve = |dir: &str| {
        let (starter, stdout) = std::io::pipe().unwrap();
        drop(starter);
        let mut serve = lab.command(["--dir", dir, "broker", "serve"]);
        serve.stdout(stdout).stderr(Stdio::piped());
        all_to_their_ends(vec![("broker serve".to_owned(), serve)]).remove(0)
    };
    serve(".lab").exits(0);
    assert!(!lab.path(".lab/broker.json").exists());
    assert_eq!(lab.ok("broker status"), "[broker] down\n");

    serve("gone").exits(4);
    assert!(!lab.path("gone").exists(), "a directory that is gone stays so");
}

/// A process group, none of which outlives the test.
struct Group(Pid);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = killpg(self.0, Signal::SIGKILL);
    }
}

#[test]
fn a_reader_that_leaves_early_leaves_nothing_behind() {
    let lab = Lab::new();
    let stage = Stage::new(&lab);
    let mut run = stage.lab.program("bash", ["-c", "\"$0\" \"$@\" | head -1"]);
    run.arg(stage.project.join("run.sh")).arg("--chapter");
    run.env("OUTBOX_LAB_BIN", &stage.program).env("TMPDIR", lab.path("a tmp"));
    let run = Ended::of("./run.sh | head -1", run.output().unwrap());
    assert_eq!(run.stdout, "# The counter-example: a committed row that no one will ever send\n");
    stage.leaves_nothing();
}

#[test]
fn accept_takes_the_transcript_for_the_right_one() {
    let lab = Lab::new();
    let stage = Stage::new(&lab).in_a_copy();
    let right = fs::read_to_string(stage.golden()).unwrap();
    stage.spoil_golden();
    stage.run("./run.sh --accept").exits(0).ends_in("ACCEPTED");
    assert_eq!(fs::read_to_string(stage.golden()).unwrap(), right);
    assert_eq!(names(&stage.project.join("expected")), ["README.md", "chapter.txt", "experiments", "matrix.txt"]);
    stage.run("./run.sh --chapter").exits(0).ends_in("PASS");
    stage.leaves_nothing();
}

#[test]
fn accept_takes_no_run_that_did_not_come_to_its_end() {
    for (lab_is, code, verdict) in
        [(kill_misses().as_str(), 3, "INCONCLUSIVE"), (MARKS_FIRST, 1, "FAIL"), ("exit 4", 4, "FAIL")]
    {
        let lab = Lab::new();
        let stage = Stage::new(&lab).in_a_copy().with_lab(lab_is);
        let before = fs::read_to_string(stage.golden()).unwrap();
        stage.run("./run.sh --accept").exits(code).ends_in(verdict);
        assert_eq!(fs::read_to_string(stage.golden()).unwrap(), before);
        assert_eq!(names(&stage.project.join("expected")), ["README.md", "chapter.txt", "experiments", "matrix.txt"]);
    }
}

#[test]
fn the_books_own_command_line_works_to_the_letter() {
    let lab = Lab::new();
    let stage = Stage::new(&lab);
    let book = |path: &str, command: &str| format!("./run.sh -Doutbox.db={path} OutboxLab {command}");
    let hold = |line: &str| {
        let mut held = Held::start(line, stage.command(line));
        held.until_hold();
        held
    };

    let write = hold(&book("not/yet/there/outbox", "write-hold 5"));
    assert_eq!(
        write.printed,
        [
            "[write] txn i=1 loan=L-1001 event=evt-1001 committed business=1 outbox=1",
            "[write] txn i=2 loan=L-1002 event=evt-1002 committed business=2 outbox=2",
            "[write] txn i=3 loan=L-1003 event=evt-1003 committed business=3 outbox=3",
            "[write] txn i=4 loan=L-1004 event=evt-1004 committed business=4 outbox=4",
            "[write] txn i=5 loan=L-1005 event=evt-1005 committed business=5 outbox=5",
            "[write] committed all, HOLD before publish; kill -9 me",
        ]
    );
    write.until_says(&format!("kill -9 {}", write.pid()));
    write.kill();
    assert_eq!(stage.processes(), [""; 0], "what was killed is the lab itself");
    assert_eq!(
        stage.run(&book("not/yet/there/outbox", "verify")).exits(0).stdout,
        "[verify] business_loan=5 outbox=5 published=0 unpublished=5\n"
    );

    let naive = hold(&book("nor/this/outbox", "naive-hold"));
    assert_eq!(naive.printed, ["[naive] business row L-2001 committed; HOLD before send; kill -9 me"]);
    naive.kill();
    assert_eq!(
        stage.run(&book("nor/this/outbox", "verify")).exits(0).stdout,
        "[verify] business_loan=1 outbox=0 published=0 unpublished=0\n"
    );
}

#[test]
fn a_property_that_the_lab_does_not_know_is_a_usage_error() {
    let lab = Lab::new();
    let stage = Stage::new(&lab);
    for line in ["./run.sh -Doutbox.url=x OutboxLab verify", "./run.sh OutboxLab -D verify"] {
        stage.run(line).exits(2).says("no property -D").says("-Doutbox.db=PATH");
    }
}

#[test]
fn a_command_through_run_sh_is_the_labs_own() {
    let lab = Lab::new();
    let stage = Stage::new(&lab);
    let same = |line: &str, code: i32| {
        let (through, own) = (stage.run(&format!("./run.sh {line}")), lab.run(line));
        assert_eq!((through.code, through.stdout, through.stderr), (own.code, own.stdout, own.stderr), "{line}");
        assert_eq!(own.code, Some(code), "{line}");
    };
    same("verify", 4);
    lab.ok("write 2");
    same("verify", 0);
    same("--db .lab/outbox.db verify", 0);
    same("consume", 3);
    lab.ok("publish 2");
    same("consume", 0);
    same("reconcile --expect 2/2/3/2", 1);
    same("write", 2);
    same("no-such-command", 2);
    same("--help", 0);
}

#[test]
fn a_missing_tool_is_named_with_the_command_that_installs_it() {
    let needs = [
        ("diff", "diffutils", "diffutils", "xcode-select --install"),
        ("cargo", "rustup", "rustup", "brew install rustup"),
        ("cc", "gcc", "gcc", "xcode-select --install"),
        ("c++", "g++", "gcc-c++", "xcode-select --install"),
        ("make", "make", "make", "xcode-select --install"),
    ];
    let lab = Lab::new();
    let stage = Stage::new(&lab);
    for (nth, (missing, debian, fedora, macos)) in needs.into_iter().enumerate() {
        let path =
            tools(&lab, &format!("without-{nth}"), &["awk", "bash", "dirname", "cat", "mktemp", "mkdir", "rm", "tee"]);
        for (tool, ..) in needs.into_iter().filter(|(tool, ..)| *tool != missing) {
            symlink(tool_path("true").unwrap(), path.join(tool)).unwrap();
        }
        let lines: &[_] = if missing == "diff" { &["./run.sh"] } else { &["./run.sh", "./run.sh verify"] };
        for line in lines {
            let mut run = stage.command(line);
            run.env("PATH", &path).env_remove("OUTBOX_LAB_BIN");
            let run = Ended::of(line, run.output().unwrap())
                .exits(4)
                .says(&format!("run.sh: {missing} is missing"))
                .says(&format!("\n  Debian/Ubuntu  sudo apt-get install {debian}"))
                .says(&format!("\n  Fedora         sudo dnf install {fedora}"))
                .says(&format!("\n  macOS          {macos}"));
            assert_eq!(run.stdout, "");
        }
    }
    stage.leaves_nothing();
}

#[test]
fn without_another_lab_named_it_builds_its_own() {
    let lab = Lab::new();
    let stage = Stage::new(&lab).in_a_copy();
    fs::create_dir_all(stage.project.join("target/release")).unwrap();
    fs::rename(&stage.program, stage.project.join("target/release/outbox-lab")).unwrap();
    let built_by = |cargo: &str| {
        let folder = lab.path(cargo);
        fs::create_dir(&folder).unwrap();
        symlink(tool_path(cargo).unwrap(), folder.join("cargo")).unwrap();
        let path = std::env::var("PATH").unwrap();
        let mut run = stage.command("./run.sh --chapter");
        run.env_remove("OUTBOX_LAB_BIN").env("PATH", format!("{}:{path}", folder.display()));
        Ended::of("./run.sh", run.output().unwrap())
    };
    built_by("true").exits(0).ends_in("PASS");
    assert_eq!(built_by("false").exits(4).says("could not be built").stdout, "");
    stage.leaves_nothing();
}

#[test]
fn reconcile_sh_counts_the_chapter_for_itself() {
    on_each_broker("reconcile_sh_counts_the_chapter_for_itself", |lab| {
        lab.play_chapter();
        let stage = Stage::new(lab);
        assert_eq!(stage.run("scripts/reconcile.sh").exits(0).stdout, RECONCILED);
        assert_eq!(stage.run("scripts/reconcile.sh 5/5/8/5").exits(0).stdout, RECONCILED);
        for wrong in ["4/5/8/5", "5/4/8/5", "5/5/5/5", "5/5/8/8", "0/0/0/0"] {
            let mismatch = format!("MISMATCH: expected {wrong}, found 5/5/8/5");
            stage.run(&format!("scripts/reconcile.sh {wrong}")).exits(1).ends_in(&mismatch);
        }
    });
}

#[test]
fn reconcile_sh_looks_where_the_environment_says() {
    let lab = Lab::new();
    let stage = Stage::new(&lab);
    lab.ok("write 1");
    lab.ok("--db other.db write 2");
    lab.ok("--db other.db publish 2");
    let mut other = stage.command("scripts/reconcile.sh 2/2/2/2");
    Ended::of("reconcile.sh", other.env("OUTBOX_LAB_DB", "other.db").output().unwrap()).exits(0).ends_in("RECONCILED");

    lab.ok("--dir other write 3");
    lab.ok("--dir other publish 3");
    let mut other = stage.command("scripts/reconcile.sh 3/3/3/3");
    Ended::of("reconcile.sh", other.env("OUTBOX_LAB_DIR", "other").output().unwrap()).exits(0).ends_in("RECONCILED");
    lab.ok("--dir other clean");
}

#[test]
fn reconcile_sh_refuses_what_is_not_four_numbers() {
    let lab = Lab::new();
    lab.play_chapter();
    let stage = Stage::new(&lab);
    for wrong in ["5/5/8", "5/5/8/5/5", "5/5/8/x", "/5/8/5", "5/5/8/", "5//8/5", "five", "-1/5/8/5", "5/5/8/5.0"] {
        let refused = stage.run(&format!("scripts/reconcile.sh {wrong}")).exits(2).says("four numbers as in 5/5/8/5");
        assert_eq!(refused.stdout, "", "{wrong}");
    }
}

#[test]
fn reconcile_sh_counts_the_same_without_sqlite3() {
    const NEEDED: [&str; 8] = ["bash", "dirname", "cat", "sed", "grep", "sort", "uniq", "env"];
    let lab = Lab::new();
    lab.play_chapter();
    let stage = Stage::new(&lab);
    let run_with = |path: &Path, home: &Path| {
        let mut run = stage.command("scripts/reconcile.sh");
        run.env("PATH", path).env("HOME", home);
        Ended::of("scripts/reconcile.sh", run.output().unwrap()).exits(0)
    };
    let without = run_with(&tools(&lab, "without", &NEEDED), &lab.path(""));
    assert_eq!((without.stdout.as_str(), without.stderr.as_str()), (RECONCILED, ""));

    // One that cannot read the file, as those before 3.37 cannot, does no harm, and is told of.
    let old = tools(&lab, "old", &NEEDED);
    shell("printf '#!/bin/sh\\nexit 1\\n' >\"$1\" && chmod +x \"$1\"", &[&old.join("sqlite3")], "");
    let with_old = run_with(&old, &lab.path("")).says("the rows are taken from verify");
    assert_eq!(with_old.stdout, RECONCILED);

    let Some(sqlite3) = tool_path("sqlite3") else {
        not_run("reconcile_sh_counts_the_same_without_sqlite3", "sqlite3 is not installed, so none could be left out");
        return;
    };
    let with = tools(&lab, "with", &NEEDED);
    symlink(sqlite3, with.join("sqlite3")).unwrap();
    fs::create_dir(lab.path("home")).unwrap();
    fs::write(lab.path("home/.sqliterc"), ".headers on\n.mode box\n").unwrap();
    let with = run_with(&with, &lab.path("home"));
    assert_eq!((with.stdout.as_str(), with.stderr.as_str()), (RECONCILED, ""));

    // That it was asked at all: it sees what a lab that lies about the rows does not say.
    let lies = r#"case $1 in verify) echo "[verify] business_loan=6 outbox=6 published=6 unpublished=0"; exit ;; esac"#;
    stage.with_lab(lies).run("scripts/reconcile.sh").exits(0).ends_in("RECONCILED: 5/5/8/5");
}

#[test]
fn reconcile_sh_passes_nothing_that_it_could_not_read() {
    let lab = Lab::new();
    let stage = Stage::new(&lab);
    let no_pass = |code: i32, says: &str| {
        for expected in ["5/5/8/5", "0/0/0/0", "5/5/0/0"] {
            let ended = stage.run(&format!("scripts/reconcile.sh {expected}")).exits(code).says(says);
            assert_eq!(ended.stdout, "");
        }
    };
    no_pass(4, "there is no lab database");
    lab.ok("write 5");
    no_pass(3, "there is no topic");
    lab.ok("publish 5");
    stage.run("scripts/reconcile.sh 5/5/5/5").exits(0);
    lab.ok("broker stop");
    no_pass(3, "the records are gone");
    fs::write(lab.path(".lab/outbox.db"), "this is no database, and long enough to be looked at\n".repeat(99)).unwrap();
    no_pass(4, "is not");
}

#[test]
fn reconcile_sh_counts_records_that_are_none_of_the_labs() {
    let lab = Lab::new();
    lab.ok("write 2");
    lab.ok("publish 1");
    lab.send_foreign(None, "two\nlines, and a comma");
    // One event is missing, and the foreign record must not make up for it.
    other_program(&lab.path(".lab/outbox.db")).execute_batch("UPDATE outbox SET published = 1").unwrap();
    let stage = Stage::new(&lab);
    stage.run("scripts/reconcile.sh 2/2/2/2").exits(1).ends_in("MISMATCH: expected 2/2/2/2, found 2/2/2/1");
    lab.run("reconcile --expect 2/2/2/2").exits(1);
    lab.send_foreign(Some(""), "an empty key");
    stage.run("scripts/reconcile.sh 2/2/3/1").exits(1).ends_in("MISMATCH: expected 2/2/3/1, found 2/2/3/1");
}
