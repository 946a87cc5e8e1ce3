//! Runs the models: explores, collects outcomes, puts faults in. What the models share of a scheduler is in `world`.

mod world;

pub(crate) use crate::sync::{Change, Gate, Lines, stall_at_gate};
pub(crate) use world::{Firing, Key, NEVER, Named, Run, RunEnd, Sealed, TICK_0, Value, Worker, World, ordinal};

use crate::sync::{self, Loads, Operation, Order, Place, Setting};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Once;

/// The shipped files, to find a place by its text.
const SOURCES: &[(&str, &str)] = &[
    ("src/capacity.rs", include_str!("../../src/capacity.rs")),
    ("src/shard/alarm.rs", include_str!("../../src/shard/alarm.rs")),
    ("src/shard/array.rs", include_str!("../../src/shard/array.rs")),
    ("src/shard/ends.rs", include_str!("../../src/shard/ends.rs")),
    ("src/shard/hint.rs", include_str!("../../src/shard/hint.rs")),
    ("src/shard/index.rs", include_str!("../../src/shard/index.rs")),
    ("src/shard/line.rs", include_str!("../../src/shard/line.rs")),
    ("src/shard/lines.rs", include_str!("../../src/shard/lines.rs")),
    ("src/shard/overflow.rs", include_str!("../../src/shard/overflow.rs")),
    ("src/shard/mailbox.rs", include_str!("../../src/shard/mailbox.rs")),
    ("src/shard/mod.rs", include_str!("../../src/shard/mod.rs")),
    ("src/shard/ordinal.rs", include_str!("../../src/shard/ordinal.rs")),
    ("src/shard/period.rs", include_str!("../../src/shard/period.rs")),
    ("src/shard/reuse.rs", include_str!("../../src/shard/reuse.rs")),
    ("src/shard/segments.rs", include_str!("../../src/shard/segments.rs")),
    ("src/shard/slab.rs", include_str!("../../src/shard/slab.rs")),
    ("src/shard/succession.rs", include_str!("../../src/shard/succession.rs")),
    ("src/shard/tick.rs", include_str!("../../src/shard/tick.rs")),
    ("src/shard/unindexed.rs", include_str!("../../src/shard/unindexed.rs")),
    ("src/shard/word.rs", include_str!("../../src/shard/word.rs")),
];

/// Where an atomic operation was done, and which operation it was.
type Places = BTreeSet<(Place, Operation)>;

/// The lines of `snippet`, white space aside. It must stand in that file exactly once.
pub(crate) fn place(file: &str, snippet: &str) -> Lines {
    let (file, source) = SOURCES
        .iter()
        .find(|(name, _)| name.ends_with(file))
        .unwrap_or_else(|| panic!("{file} is not among the shipped files"));
    let wanted: String = snippet.split_whitespace().collect();
    let mut squeezed = String::new();
    let mut lines = Vec::new();
    for (number, line) in source.lines().enumerate() {
        for letter in line.chars().filter(|letter| !letter.is_whitespace()) {
            squeezed.push(letter);
            lines.resize(squeezed.len(), number as u32 + 1);
        }
    }
    let found: Vec<_> = squeezed.match_indices(&wanted).map(|(at, _)| at).collect();
    assert!(found.len() == 1, "`{snippet}` stands {} times in {file}: the mutant needs a new snippet", found.len());
    let last = found[0] + wanted.len() - 1;
    Lines { file, first_line: lines[found[0]], last_line: lines[last], column: 0 }
}

/// With more executions than this, the model must be made smaller: a failure, where loom's own limits would make it a
/// pass.
const MAX_EXECUTIONS: u64 = 300_000;
const TOO_MANY: &str = "the model is too large to be explored";

/// One race.
#[derive(Clone, Copy)]
pub(crate) struct Model {
    pub(crate) name: &'static str,
    /// How often a thread may be interrupted; `None`: without limit.
    pub(crate) preemptions: Option<usize>,
    /// Whether to reclaim as early as is legal, or not before the end of the model.
    pub(crate) reclaim_early: bool,
    pub(crate) plain_preemptions: Option<usize>,
    /// Whether it is also explored with one stale place at a time.
    pub(crate) stale_places: bool,
    pub(crate) run: fn(),
}

impl Model {
    pub(crate) const fn new(name: &'static str, run: fn()) -> Self {
        Self { name, preemptions: Some(3), plain_preemptions: Some(3), reclaim_early: false, stale_places: true, run }
    }

    pub(crate) const fn preemptions(self, bound: usize) -> Self {
        Self { preemptions: Some(bound), plain_preemptions: Some(bound), ..self }
    }

    /// The bound for plain loads, with which loom may have to explore more.
    pub(crate) const fn plain_preemptions(self, bound: usize) -> Self {
        Self { plain_preemptions: Some(bound), ..self }
    }

    pub(crate) const fn reclaims_early(self) -> Self {
        Self { reclaim_early: true, ..self }
    }

    pub(crate) const fn without_stale_places(self) -> Self {
        Self { stale_places: false, ..self }
    }

    /// Checks that the model passes, and reaches exactly these outcomes, over all ways of loading.
    pub(crate) fn reaches<O: Debug>(&self, expected: &[O]) {
        let mut outcomes = BTreeSet::new();
        let [mut visible, mut plain, mut stale] = [0; 3];
        let explored = self.in_each_way(|loads| {
            let explored = self.explore(loads, None);
            *match loads {
                Loads::Visible => &mut visible,
                Loads::Plain => &mut plain,
                Loads::StaleAt(_) => &mut stale,
            } += explored.executions;
            outcomes.extend(explored.outcomes);
            explored.result.map_err(|failure| format!("with {loads:?} loads: {failure}"))?;
            Ok(explored.raced_places)
        });
        explored.unwrap_or_else(|failure| panic!("{} {failure}", self.name));
        println!("{}: {visible} + {plain} + {stale} executions, outcomes {outcomes:?}", self.name);
        let expected: BTreeSet<_> = expected.iter().map(|outcome| format!("{outcome:?}")).collect();
        assert_eq!(outcomes, expected, "{}: the outcomes reached are not those expected", self.name);
    }

    /// Explores with visible loads, then with plain loads, and then for each place that loads among those that the
    /// first way reached while another thread ran: that one plain, all others visible. (Elsewhere nothing is stale.)
    /// Stops at the first way that fails.
    fn in_each_way(&self, mut explore: impl FnMut(Loads) -> Result<Places, String>) -> Result<(), String> {
        let places = explore(Loads::Visible)?;
        explore(Loads::Plain)?;
        let loads = places.iter().filter(|(_, operation)| self.stale_places && matches!(operation, Operation::Load(_)));
        loads.map(|(place, _)| Loads::StaleAt((*place).into())).try_for_each(|loads| explore(loads).map(drop))
    }

    /// Checks that the model fails with this fault in the shipped code, and for this reason.
    #[track_caller]
    pub(crate) fn kills(&self, lines: Lines, change: Change, reason: &str) {
        match self.fails(lines, change) {
            Some(failure) => {
                assert!(failure.contains(reason), "{}: expected `{reason}`, got: {failure}", self.name);
            }
            None => panic!("{}: survived {change:?} at {lines:?}", self.name),
        }
    }

    /// How the model fails with this fault in the shipped code, if it does. Starts with few interruptions: most faults
    /// need no more, and there are far fewer executions.
    pub(crate) fn fails(&self, lines: Lines, change: Change) -> Option<String> {
        let mut fewer = (1..self.preemptions.unwrap_or(3)).map(|bound| self.preemptions(bound));
        let failure = fewer.find_map(|model| model.fails_as_it_is(lines, change, false));
        failure.or_else(|| self.fails_as_it_is(lines, change, true))
    }

    /// With few interruptions, the model may pass without reaching these lines.
    fn fails_as_it_is(&self, lines: Lines, change: Change, must_reach: bool) -> Option<String> {
        let explored = self.in_each_way(|loads| {
            let explored = self.explore(loads, Some((lines, change)));
            let may_miss = !must_reach && explored.result.is_ok();
            assert!(explored.mutant_was_reached || may_miss, "{}: {lines:?} is not on its way", self.name);
            explored.result.inspect_err(|failure| {
                let bound = self.preemptions;
                println!("{}: {change:?} killed with {loads:?} loads, {bound:?} interruptions: {failure}", self.name);
            })?;
            Ok(explored.raced_places)
        });
        explored.err()
    }

    fn explore(&self, loads: Loads, mutant: Option<(Lines, Change)>) -> Explored {
        record_panics();
        let setting = Setting { loads, mutant, reclaim_early: self.reclaim_early };
        sync::configure(setting);
        OUTCOMES.take();
        EXECUTIONS.set(0);
        QUIET.set(true);
        let mut builder = loom::model::Builder::new();
        // Never from the environment: a run that ends early would pass.
        (builder.max_duration, builder.max_permutations) = (None, None);
        builder.preemption_bound = match loads {
            // One of some thirty runs, so each is kept smaller: one or two preemptions show what one stale load does.
            Loads::StaleAt(_) => Some(self.preemptions.map_or(2, |bound| (bound - 1).min(2))),
            Loads::Plain => self.plain_preemptions,
            Loads::Visible => self.preemptions,
        };
        builder.max_branches = 20_000;
        let run = self.run;
        let result = catch_unwind(AssertUnwindSafe(|| {
            builder.check(move || {
                EXECUTIONS.set(EXECUTIONS.get() + 1);
                assert!(EXECUTIONS.get() <= MAX_EXECUTIONS, "{TOO_MANY}");
                FIRST_PANIC.take();
                release_quarantine();
                sync::begin_execution();
                world::begin_execution();
                run();
                sync::epoch::finish();
                world::end_execution();
                // `same_key` and `drop_key` catch what unwinds through a key's code, loom's own findings included.
                if let Some(message) = FIRST_PANIC.take() {
                    panic!("{message}");
                }
            });
        }));
        QUIET.set(false);
        sync::end_exploration();
        let result = result.map_err(|_| FIRST_PANIC.take().unwrap_or_else(|| "a panic without a message".into()));
        Explored {
            result,
            executions: EXECUTIONS.get(),
            outcomes: OUTCOMES.take(),
            places: sync::recorded_places(),
            raced_places: sync::raced_places(),
            mutant_was_reached: sync::mutant_was_reached(),
        }
    }
}

struct Explored {
    result: Result<(), String>,
    executions: u64,
    outcomes: BTreeSet<String>,
    places: Places,
    raced_places: Places,
    mutant_was_reached: bool,
}

thread_local! {
    static OUTCOMES: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
    static EXECUTIONS: Cell<u64> = const { Cell::new(0) };
    static FIRST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Notes the outcome of this execution of the model.
pub(crate) fn outcome(outcome: impl Debug) {
    OUTCOMES.with_borrow_mut(|outcomes| outcomes.insert(format!("{outcome:?}")));
}

/// Keeps the message of the first panic of an execution, and prints nothing about panics of models.
fn record_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let default_hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                return default_hook(info);
            }
            let text = info.payload().downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| info.payload().downcast_ref::<String>().cloned());
            let at = info.location().map(ToString::to_string).unwrap_or_default();
            FIRST_PANIC.with_borrow_mut(|first| {
                first.get_or_insert_with(|| format!("{} ({at})", text.unwrap_or_default()));
            });
        }));
    });
}

thread_local! {
    static PARAMETER: Cell<usize> = const { Cell::new(0) };
}

/// A number that a test sets for its model, as a model cannot capture anything.
pub(crate) fn parameter() -> usize {
    PARAMETER.get()
}

pub(crate) fn set_parameter(parameter: usize) {
    PARAMETER.set(parameter);
}

/// Starts a thread of the model.
pub(crate) fn spawn<R: 'static>(run: impl FnOnce() -> R + 'static) -> loom::thread::JoinHandle<R> {
    sync::another_begins();
    loom::thread::spawn(run)
}

/// Joins the thread. Returns its answer.
pub(crate) fn join<R>(handle: loom::thread::JoinHandle<R>) -> R {
    let answer = handle.join().expect("a thread of a model panicked");
    sync::another_has_ended();
    answer
}

// --- every fault at every place -----------------------------------------------------------------------------------

fn changes(operation: Operation) -> Vec<Change> {
    let acquires = |order| matches!(order, Order::Acquire | Order::AcqRel | Order::SeqCst);
    let releases = |order| matches!(order, Order::Release | Order::AcqRel | Order::SeqCst);
    let mut changes = Vec::new();
    match operation {
        Operation::Load(order) => changes.extend(acquires(order).then_some(Change::DropAcquire)),
        Operation::Store(order) => changes.extend(releases(order).then_some(Change::DropRelease)),
        Operation::Modify(order) => {
            changes.push(Change::Tear);
            changes.extend(acquires(order).then_some(Change::DropAcquire));
            changes.extend(releases(order).then_some(Change::DropRelease));
        }
        Operation::Exchange(success, failure) => {
            changes.push(Change::Tear);
            changes.extend(acquires(success).then_some(Change::DropAcquire));
            changes.extend(releases(success).then_some(Change::DropRelease));
            changes.extend(acquires(failure).then_some(Change::RelaxFailure));
        }
        Operation::Fence(_) => changes.extend([Change::DropFence, Change::WeakenFence]),
    }
    changes
}

/// Tries every change of an ordering and every torn operation at every place that the models reach. Writes one line for
/// each to standard output and to `target/loom-sweep/<file>.txt`: `killed` or `SURVIVED`, place, change, by which model
/// and why. With `SHARDWHEEL_SWEEP=word.rs,hint.rs`, only at the places of those files. A fault that another file's
/// models have noticed, according to the existing reports, is not tried again.
pub(crate) fn sweep(file: &str, models: &[Model]) {
    use std::fmt::Write as _;
    let mut places = BTreeSet::new();
    let mut ways = Vec::new();
    for model in models {
        // Recorded with visible loads, which come first.
        let mut reached = Places::new();
        let explored = model.in_each_way(|loads| {
            let explored = model.explore(loads, None);
            explored.result?;
            reached.extend(explored.places);
            places.extend(reached.iter().copied());
            ways.push((model, loads, reached.clone(), explored.executions));
            Ok(explored.raced_places)
        });
        explored.unwrap_or_else(|failure| panic!("{}: {failure}", model.name));
    }
    // The cheapest first.
    ways.sort_by_key(|(_, _, _, executions)| *executions);
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("target/loom-sweep");
    std::fs::create_dir_all(&folder).expect("a folder for the report");
    let noticed = noticed_faults(&folder);
    let mut report = String::new();
    let chosen = std::env::var("SHARDWHEEL_SWEEP").unwrap_or_default();
    let is_chosen = |place: &Place| chosen.split(',').any(|name| place.file.ends_with(name));
    let shipped = |place: &Place| place.file.starts_with("src/");
    for (place, operation) in places.iter().filter(|(place, _)| shipped(place) && is_chosen(place)) {
        let lines = Lines::from(*place);
        for change in changes(*operation) {
            let fault = format!("{}:{}:{}\t{change:?}", place.file, place.line, place.column);
            if noticed.contains(&fault) {
                continue;
            }
            let killer = ways.iter().filter(|(_, _, reached, _)| reached.contains(&(*place, *operation))).find_map(
                |(model, loads, _, _)| {
                    let explored = model.explore(*loads, Some((lines, change)));
                    let failure = explored.result.err().filter(|failure| !is_limit(failure))?;
                    Some(format!("{} ({failure})", model.name))
                },
            );
            let source = SOURCES.iter().find(|(name, _)| *name == place.file);
            let code = source.and_then(|(_, source)| source.lines().nth(place.line as usize - 1)).unwrap_or("").trim();
            let verdict = if killer.is_some() { "killed" } else { "SURVIVED" };
            let by = killer.unwrap_or_default();
            let by = by.lines().next().unwrap_or_default();
            let line = format!("{verdict}\t{fault}\t{code}\t{by}");
            println!("{line}");
            let _ = writeln!(report, "{line}");
        }
    }
    std::fs::write(folder.join(format!("{file}.txt")), report).expect("a file for the report");
}

/// True if a model has become too large, perhaps because of the fault: that shows nothing about the fault.
fn is_limit(failure: &str) -> bool {
    failure.contains(TOO_MANY) || failure.contains("maximum number of branches")
}

/// Place and change of all faults that the reports in `folder` call killed.
fn noticed_faults(folder: &std::path::Path) -> BTreeSet<String> {
    let reports = std::fs::read_dir(folder).expect("a folder of reports");
    let texts = reports.filter_map(|entry| std::fs::read_to_string(entry.ok()?.path()).ok());
    let fault = |line: &str| {
        let (place, rest) = line.strip_prefix("killed\t")?.split_once('\t')?;
        Some(format!("{place}\t{}", rest.split('\t').next()?))
    };
    texts.flat_map(|text| text.lines().filter_map(fault).collect::<Vec<_>>()).collect()
}

// --- freed memory is kept until the end of the execution ------------------------------------------------------------

/// Frees nothing that the epoch gives back before the execution is over, but overwrites it: a thread that still uses it
/// finds garbage, every time.
struct Quarantine;

thread_local! {
    static QUARANTINE: Cell<bool> = const { Cell::new(false) };
    static KEPT: RefCell<Vec<(*mut u8, Layout)>> = const { RefCell::new(Vec::new()) };
}

#[global_allocator]
static ALLOCATOR: Quarantine = Quarantine;

// SAFETY: the system's allocator, except that some memory is freed later than asked.
unsafe impl GlobalAlloc for Quarantine {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if QUARANTINE.try_with(Cell::get).unwrap_or(false) {
            // SAFETY: the caller gives the memory up.
            unsafe { pointer.write_bytes(0xdd, layout.size()) };
            QUARANTINE.set(false);
            KEPT.with_borrow_mut(|kept| kept.push((pointer, layout)));
            QUARANTINE.set(true);
        } else {
            // SAFETY: as the caller promises.
            unsafe { System.dealloc(pointer, layout) };
        }
    }
}

/// Runs what the epoch has deferred. What it frees stays readable, as garbage, until the next execution begins.
pub(crate) fn with_quarantine(deferred: Box<dyn FnOnce()>) {
    QUARANTINE.set(true);
    deferred();
    QUARANTINE.set(false);
}

fn release_quarantine() {
    QUARANTINE.set(false);
    for (pointer, layout) in KEPT.take() {
        // SAFETY: kept by `dealloc`, which was told to free it.
        unsafe { System.dealloc(pointer, layout) };
    }
}
