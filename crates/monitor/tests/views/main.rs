//! Pictures of the ranks view, as text.

mod sample;

use everburn_monitor::{RanksView, RunState, Update, draw_ranks};
use everburn_record::{Event, EventKind, Live, Phase};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::sample::{NOW, beginning, fed, live};

/// What a terminal of this size shows, line by line, without the blanks at the ends.
fn picture(state: &RunState, view: RanksView, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| draw_ranks(state, view, frame.area(), frame.buffer_mut()))
        .unwrap();
    text(terminal.backend().buffer())
}

fn text(buffer: &Buffer) -> String {
    let rows = buffer.content.chunks(buffer.area.width.into());
    let lines = rows.map(|row| {
        let line: String = row.iter().map(ratatui::buffer::Cell::symbol).collect();
        line.trim_end().to_string()
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_run_on_four_ranks_of_which_one_is_slow() {
    let state = fed(4, 60);
    assert_eq!(state.trouble(), None);
    insta::assert_snapshot!(
        "four_ranks_100x30",
        picture(&state, RanksView::default(), 100, 30)
    );
    let view = RanksView {
        work: true,
        dashboard: true,
        ..RanksView::default()
    };
    insta::assert_snapshot!("four_ranks_200x60", picture(&state, view, 200, 60));
}

#[test]
fn a_rank_that_was_lost_is_seen() {
    let mut state = fed(4, 20);
    for kind in [EventKind::Restart, EventKind::Loss] {
        let event = Event {
            unix_time_ms: Some(NOW - 1_000),
            step: Some(200),
            rank: Some(2),
            ..Event::new(kind, "rank 2 was killed by SIGKILL; restart 1 of 3 now")
        };
        state.take(&Update::Event(event), NOW);
    }
    let mut live = live(200, 4);
    live.phase = Phase::Regrouping;
    live.ranks[2].silent_seconds = Some(6.5);
    live.ranks[2].alive = false;
    state.take(&Update::Live(live), NOW);
    assert_eq!(state.trouble().as_deref(), Some("3 of 4 ranks, lost: 2"));
    insta::assert_snapshot!(
        "a_rank_lost",
        picture(&state, RanksView::default(), 100, 30)
    );
}

#[test]
fn on_a_narrow_terminal_a_run_that_hangs_shows_who_waits_in_the_place_of_times() {
    let mut state = fed(4, 20);
    let shown = |state: &RunState| picture(state, RanksView::default(), 80, 30);
    assert!(shown(&state).contains(" spent on "));
    let mut live = live(201, 4);
    live.moved_unix_ms = Some(NOW - 15_000);
    for rank in live.ranks.iter_mut().take(3) {
        rank.doing = Some(
            "all_reduce(f32[21840], sum) (collective 603, step 201), under way for 14.7 s, waiting for rank 3"
                .into(),
        );
        rank.under_way = true;
        rank.waiting_for = vec![3];
    }
    state.take(&Update::Live(live), NOW);
    let hangs = shown(&state);
    let title = "─ no step for 15 s, waiting for rank 3 (pid 4713) ─";
    assert!(hangs.contains(title), "{hangs}");
    let waits = "under way for 14.7 s, waiting for rank 3: ";
    assert_eq!(hangs.matches(waits).count(), 3, "{hangs}");
    assert!(
        hangs.contains("pid 4713; done 0.0 s ago: all_reduce"),
        "{hangs}"
    );
    assert!(!hangs.contains("spent on"), "{hangs}");
}

#[test]
fn many_ranks_are_scrolled() {
    let state = fed(64, 200);
    let view = RanksView {
        scrolled: 30,
        whole: true,
        ..RanksView::default()
    };
    insta::assert_snapshot!("many_ranks_100x30", picture(&state, view, 100, 30));
    let beyond = RanksView {
        scrolled: 9999,
        ..RanksView::default()
    };
    assert!(picture(&state, beyond, 200, 60).contains("of 64"));
}

#[test]
fn gpus_are_shown_where_there_are_any() {
    let mut state = fed(2, 5);
    let mut live = live(50, 2);
    for rank in &mut live.ranks {
        rank.process_metrics.gpu_percent = Some(97);
        rank.process_metrics.gpu_celsius = Some(61 + rank.rank as u32);
        rank.process_metrics.gpu_memory_bytes = Some(61 << 30);
    }
    live.phase = Phase::Compiling;
    state.take(&Update::Live(live), NOW);
    insta::assert_snapshot!("gpus", picture(&state, RanksView::default(), 140, 30));
}

#[test]
fn before_the_first_step_and_after_the_last() {
    insta::assert_snapshot!(
        "beginning",
        picture(&beginning(), RanksView::default(), 100, 24)
    );
    let mut state = fed(2, 10);
    let ended = Live {
        phase: Phase::Ended,
        ..live(100, 2)
    };
    state.take(&Update::Live(ended), NOW);
    state.take(
        &Update::Report(serde_json::json!({"stopped": "on request after step 100"})),
        NOW,
    );
    state.take(&Update::Running(false), NOW);
    insta::assert_snapshot!("ended", picture(&state, RanksView::default(), 100, 24));
}

#[test]
fn a_screen_that_changes_its_size_in_the_middle_is_drawn_anew() {
    let state = fed(4, 60);
    let view = RanksView::default();
    let mut terminal = Terminal::new(TestBackend::new(200, 60)).unwrap();
    let draw =
        |frame: &mut ratatui::Frame| draw_ranks(&state, view, frame.area(), frame.buffer_mut());
    terminal.draw(draw).unwrap();
    for (width, height) in [(100, 30), (37, 9), (1, 1), (140, 45)] {
        terminal.backend_mut().resize(width, height);
        terminal.draw(draw).unwrap();
        let shown = text(terminal.backend().buffer());
        assert_eq!(
            shown,
            picture(&state, view, width, height),
            "{width} x {height}"
        );
    }
}

#[test]
fn no_size_and_no_state_is_too_much() {
    let states = [RunState::default(), beginning(), fed(1, 1), fed(300, 3)];
    for state in &states {
        for width in (0..130).step_by(7) {
            for height in 0..45 {
                let area = Rect::new(0, 0, width, height);
                let mut buffer = Buffer::empty(area);
                draw_ranks(state, RanksView::default(), area, &mut buffer);
            }
        }
    }
}
