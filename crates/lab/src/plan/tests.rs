//! Plans as tables, and what must hold of every plan.

use evenkeel_env::Env;
use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::capacity::{self, Capacity};
use super::effect::{Effect, Wave};
use super::event::{Model, Shock};
use super::trace::{Trace, Visit};
use super::verify::{Checked, Figure, latency};
use super::work::{Component, Demand, Of};
use super::{PlanOptions, Question, show};
use crate::scenario;

fn held(component: Component, visits: f64, service_s: f64, limit: f64) -> Demand {
    Demand { component, of: Of::Slots, visits, cost: visits * service_s, idle: 0.0, limit }
}

fn calls(component: Component, visits: f64, limit: f64) -> Demand {
    Demand { component, of: Of::Calls, visits, cost: visits, idle: 0.0, limit }
}

fn check(rate_per_s: f64, demands: &[Demand], expect: &Expect) {
    let shown = show::components(&Capacity::at(rate_per_s, demands), "task");
    // A line at the margin, without which the indentation of all others would not count.
    expect.assert_eq(&format!("At {rate_per_s} a second:\n{shown}"));
}

#[test]
fn the_component_with_the_least_room_saturates_first() {
    let model = Demand { of: Of::Streams, ..held(Component::Model, 8.0, 0.75, 600.0) };
    let store = Demand { idle: 2.0, ..held(Component::Store, 40.0, 0.004, 4.0) };
    let demands =
        [calls(Component::Gateway, 4.0, 1_000.0), model, store, held(Component::Policy, 9.0, 0.0, 10.0)];
    check(
        10.0,
        &demands,
        &expect![[r#"
            At 10 a second:
              component  limit of   arrivals/s  service  needed   limit   used  saturates at
              gateway    calls/min        40.0        -   2,400  60,000  4.0 %   250 tasks/s
              model      streams          80.0   750 ms    60.0     600   10 %   100 tasks/s
              store      slots             400  4.00 ms    3.60    4.00   90 %  12.5 tasks/s
              policy     slots            90.0     0 ms       0    10.0    0 %         never
        "#]],
    );
    let first = capacity::first(&demands).unwrap();
    assert_eq!((first.component, first.at_per_s), (Component::Store, 12.5));
}

fn parse(plan: &str) -> String {
    let text = format!(
        "name = \"x\"\nabout = \"x\"\n[traffic]\nshape = \"task-short\"\nrate_per_s = 1.0\nduration_s = 10\n\
         [goals]\nsuccess_min = 1.0\nlost_max = 0\ndoubled_max = 0\n{plan}\n"
    );
    scenario::parse("x.toml", &text).map_or_else(|error| error.to_string(), |_| "good".to_owned())
}

#[test]
fn keys_that_make_no_sense_are_refused_with_their_place() {
    let said: Vec<String> = [
        "[plan]\nheadroom = 0.3\ncommits_per_s = 900.0\nservice_ms = { policy = 0.2 }",
        "[plan]\nheadrom = 0.3",
        "[plan]\nheadroom = 1.0",
        "[plan]\ncheck = [1, 0]",
        "[plan]\nservice_ms = { polcy = 0.2 }",
        "[plan]\nservice_ms = { policy = -1.0 }",
        "[plan]\ncommits_per_s = 0.0",
    ]
    .map(parse)
    .into();
    expect![[r#"
        good
        x.toml:12: unknown field `headrom`, expected one of `headroom`, `check`, `commits_per_s`, `service_ms`. Correct that line; docs and `scenarios/` show every key. [scenario-invalid]
        x.toml:11: plan.headroom is a share of a limit: from 0 to less than 1. Correct that key of [plan]. [scenario-invalid]
        x.toml:11: plan.check has multiples of the rate: each more than 0. Correct that key of [plan]. [scenario-invalid]
        x.toml:11: plan.service_ms.polcy: there is no such component, only gateway, api, harness, model, policy, tools, sandbox, compactor, store, tracing. Correct that key of [plan]. [scenario-invalid]
        x.toml:11: plan.service_ms.policy is a time: 0 or more. Correct that key of [plan]. [scenario-invalid]
        x.toml:11: plan.commits_per_s is more than 0. Correct that key of [plan]. [scenario-invalid]"#]].assert_eq(&said.join("\n"));
}

fn demands() -> impl Strategy<Value = Vec<Demand>> {
    let one = (0..Component::ALL.len(), 0.0..50.0f64, 0.0..5.0f64, 0.0..2.0f64, 1.0..1e5f64);
    let demand = |(idx, visits, service_s, idle, limit): (usize, f64, f64, f64, f64)| Demand {
        idle,
        ..held(Component::ALL[idx], visits, service_s, limit)
    };
    prop::collection::vec(one.prop_map(demand), 1..12)
}

proptest! {
    /// More of a limit never makes a topology saturate earlier, and a rate below the end fits.
    #[test]
    fn saturation_is_monotone_in_limits(demands in demands(), idx in any::<prop::sample::Index>(), more in 0.0..1e4f64) {
        let mut larger = demands.clone();
        larger[idx.index(demands.len())].limit += more;
        let end = |demands: &[Demand]| capacity::first(demands).map_or(f64::INFINITY, |first| first.at_per_s);
        prop_assert!(end(&larger) >= end(&demands));
        let rate_per_s = end(&demands) * 0.99;
        if rate_per_s.is_finite() && rate_per_s > 0.0 {
            prop_assert!(Capacity::at(rate_per_s, &demands).headroom > 0.0);
            prop_assert!(Capacity::at(rate_per_s * 1.03, &demands).headroom < 0.0);
        }
    }
}

/// Units of one visit of the model, at a steady rate.
fn model(n: usize, every_s: f64, seconds: f64, slots: f64) -> Model {
    let visits = vec![Visit { at: Some(Component::Model), seconds }, Visit { at: None, seconds: 0.5 }];
    let end_s = n as f64 * every_s;
    Model {
        traces: vec![Trace { visits }],
        slots: [(Component::Model, slots)].into(),
        arrivals: (0..n).map(|idx| (idx as f64 * every_s, idx)).collect(),
        window: (end_s / 2.0, end_s),
        until_s: 1e6,
        ..Model::default()
    }
}

#[test]
fn units_that_find_no_slot_stand_in_line() {
    let played = model(10, 0.5, 1.0, 1.0).play();
    let told: Vec<f64> = played.ends.iter().filter_map(|(_, told_s)| *told_s).collect();
    assert_eq!(told, (1..=10).map(|idx| f64::from(idx) + 0.5).collect::<Vec<_>>());
    assert_eq!(played.in_use[&Component::Model], 1.0);
    assert_eq!(latency(&played.ends).max, 6.0);
}

#[test]
fn a_rate_lets_through_what_it_grants() {
    let mut limited = model(40, 0.1, 0.0, 1.0);
    limited.rates = vec![(Component::Model, 5.0, 1.0)];
    let last = limited.play().ends.last().unwrap().1.unwrap();
    // Forty at five a second, with one second's worth and one more in advance.
    assert!((last - 7.3).abs() < 0.01, "{last}");
}

#[test]
fn turns_of_one_thread_come_one_after_the_other() {
    let mut hot = model(4, 0.0, 1.0, 10.0);
    hot.arrivals = vec![(0.0, 7); 4];
    let told: Vec<f64> = hot.play().ends.iter().filter_map(|(_, told_s)| *told_s).collect();
    assert_eq!(told, [1.5, 3.0, 4.5, 6.0]);
}

/// Twice as much comes as the model can serve: whoever has waited for two seconds gives its slot back.
#[test]
fn a_model_without_room_does_not_fill_the_harness() {
    let full = Model { patience_s: 2.0, ..model(40, 0.5, 1.0, 1.0) };
    let played = full.play();
    assert!(played.in_use[&Component::Harness] < 6.5, "{:?}", played.in_use);
    assert!(played.ends.iter().all(|(_, told_s)| told_s.is_some()));
    let last_s = played.ends.iter().filter_map(|(_, told_s)| *told_s).fold(0.0, f64::max);
    assert_eq!(last_s, 40.5);
}

/// While the model is down nobody holds a slot of the harness; afterwards all go on.
#[test]
fn an_outage_parks_and_a_killed_replica_begins_steps_again() {
    let mut down = model(20, 0.5, 1.0, 100.0);
    down.window = (6.0, 7.0);
    down.shocks = vec![
        (5.0, Shock::Left(Component::Model, 0.0)),
        (5.0, Shock::Cut(Component::Model, 1, 0.1)),
        (8.0, Shock::Left(Component::Model, 1.0)),
    ];
    let played = down.play();
    assert_eq!(played.in_use[&Component::Harness], 0.0);
    assert!(played.ends.iter().all(|(_, told_s)| told_s.is_some()));
    let wave = Wave::of(&played.ends, (5.0, 8.0), 3.0);
    // Eleven are there when the first are told again, three are there at any time.
    assert_eq!((wave.backlog, wave.drain_s), (8.0, 1.5));

    let mut killed = model(1, 1.0, 4.0, 100.0);
    killed.shocks = vec![(3.0, Shock::Cut(Component::Harness, 1, 1.0))];
    assert_eq!(killed.play().ends, [(0.0, Some(8.5))]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Below saturation the event model is Little's law.
    #[test]
    fn the_event_model_agrees_with_littles_law(every_ms in 20..400u32, ms in 50..3_000u32) {
        let (every_s, seconds) = (f64::from(every_ms) / 1_000.0, f64::from(ms) / 1_000.0);
        let needed = seconds / every_s;
        let played = model(500, every_s, seconds, needed.ceil() + 1.0).play();
        let in_use = played.in_use[&Component::Model];
        prop_assert!((in_use - needed).abs() <= 0.02 * needed + 0.05, "{in_use} {needed}");
        prop_assert!((latency(&played.ends).p99 - seconds - 0.5).abs() < 1e-3);
    }
}

#[test]
fn comparisons_and_effects_read_like_this() {
    let figure = |name: &str, law, model, real| Figure::new(name.to_owned(), law, model, real);
    let checked = Checked {
        multiple: 10.0,
        rate_per_s: 20.0,
        load_s: 26.0,
        n_units: 520,
        real_wall_s: Some(12.25),
        figures: vec![
            figure("harness slots", 133.0, Some(131.0), Some(134.0)),
            figure("gateway calls/min", 4_716.0, None, Some(4_700.0)),
            figure("p99 time, s", 8.0, Some(8.2), None),
        ],
    };
    let effect = Effect {
        fault: "provider:primary down, 30 s".to_owned(),
        carries_per_s: Some(0.0),
        figures: vec![
            figure("backlog", 60.0, Some(58.0), None),
            figure("gone after, s", 7.0, Some(6.5), None),
            figure("p99 time, s", 39.0, Some(38.2), None),
        ],
        note: Some("an example"),
    };
    let shown = show::comparison(&checked, "task") + &show::effects(&[effect], "task");
    let text = format!("Shown:\n{shown}");
    expect![[r#"
        Shown:
          At 10 times the rate: 20.0 tasks/s for 26 s, 520 tasks; the real code took 12.25 s for them

          in use, or per min    law  event model  real code  law off by  model off by
          harness slots         133          131        134      -0.7 %        -2.2 %
          gateway calls/min   4,716            -      4,700      +0.3 %             -
          p99 time, s          8.00         8.20          -      -2.4 %             -
          Faults, each alone, at the asked rate (tasks more than before; time until they are gone)

          fault                        carries    figure          law  event model  real code
          provider:primary down, 30 s  0 tasks/s  backlog        60.0         58.0          -
                                                  gone after, s  7.00         6.50          -
                                                  p99 time, s    39.0         38.2          -
          provider:primary down, 30 s: an example.
    "#]]
    .assert_eq(&text);
}

/// The whole way, with the product's own code: a task's recorded visits take as long as the task, and
/// the event model needs what Little's law says.
#[tokio::test]
async fn a_plan_of_the_smoke_test_fits_and_agrees_with_its_event_model() {
    let options = PlanOptions { scenario: "smoke-system1".to_owned(), check: true, ..PlanOptions::default() };
    let outcome = Question::of(&options).unwrap().answer(&Env::real(), &options).await.unwrap();
    assert!(outcome.pass, "{}", show::text(&outcome));
    let first = outcome.capacity.first.unwrap();
    assert_eq!((first.component, first.of), (Component::Model, Of::Calls));
    assert!((4.0..30.0).contains(&outcome.work.model_calls), "{:?}", outcome.work);
    let compared = ["harness slots", "model streams", "store slots", "sandbox slots", "median time, s"];
    for figure in outcome.check[0].figures.iter().filter(|figure| compared.contains(&figure.name.as_str())) {
        assert!(figure.real.is_none() && figure.law_error.unwrap().abs() < 10.0, "{figure:?}");
    }
    assert_eq!(outcome.check.len(), 3);
    assert_eq!(outcome.faults.len(), scenario::find("smoke-system1").unwrap().faults.len());
}
