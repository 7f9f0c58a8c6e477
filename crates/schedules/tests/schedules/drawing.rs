//! How schedules look.

use everburn_schedules::{Costs, Schedule, ScheduleKind, StageCosts, Timeline, simulate};

fn timeline(kind: ScheduleKind, micro_batches: usize, chunks: usize) -> Timeline {
    let schedule = Schedule::new(kind, 4, micro_batches, chunks).unwrap();
    simulate(&schedule, &Costs::equal(4 * chunks)).unwrap()
}

#[test]
fn gpipe() {
    insta::assert_snapshot!(timeline(ScheduleKind::GPipe, 8, 1).to_text(100));
}

#[test]
fn one_forward_one_backward() {
    insta::assert_snapshot!(timeline(ScheduleKind::OneForwardOneBackward, 8, 1).to_text(100));
}

#[test]
fn interleaved() {
    insta::assert_snapshot!(timeline(ScheduleKind::Interleaved1F1B, 8, 2).to_text(100));
}

#[test]
fn zero_bubble_h1() {
    insta::assert_snapshot!(timeline(ScheduleKind::ZeroBubbleH1, 8, 1).to_text(100));
}

#[test]
fn a_long_step_goes_on_below() {
    insta::assert_snapshot!(timeline(ScheduleKind::OneForwardOneBackward, 16, 1).to_text(80));
}

#[test]
fn stages_of_unequal_cost_and_slow_transfers() {
    let schedule = Schedule::new(ScheduleKind::OneForwardOneBackward, 4, 12, 1).unwrap();
    let mut costs = Costs::equal(4);
    costs.stages[1] = StageCosts::of_forward(1.37);
    costs.stages[2].transfer = 0.8;
    for stage in &mut costs.stages {
        stage.activation_bytes = 3 << 20;
    }
    insta::assert_snapshot!(simulate(&schedule, &costs).unwrap().to_text(100));
}

#[test]
fn of_a_very_long_step_the_middle_is_left_out() {
    let text = timeline(ScheduleKind::OneForwardOneBackward, 500, 1).to_text(80);
    assert!(text.lines().count() <= 8 * 6 + 8, "{text}");
    assert!(text.contains(" left out)"), "{text}");
    assert!(text.contains("F0 ") && text.contains("B499"), "{text}");
}

#[test]
fn one_pass_much_shorter_than_the_others_shows_its_letter() {
    let schedule = Schedule::new(ScheduleKind::ZeroBubbleH1, 2, 3, 1).unwrap();
    let mut costs = Costs::equal(2);
    costs.stages[1].backward_weight = 1e-6;
    let text = simulate(&schedule, &costs).unwrap().to_text(80);
    assert!(
        text.contains("A box that is too narrow for its number shows none."),
        "{text}"
    );
    assert!(text.contains("F2") && text.contains("B2"), "{text}");
}

/// Letters, numbers and filling are such that a drawing can be read back, whatever the numbers.
#[test]
fn every_number_stands_where_its_box_begins() {
    let timeline = timeline(ScheduleKind::Interleaved1F1B, 101, 2);
    let text = timeline.to_text(100_000);
    for rank in 0..4 {
        let name = format!("rank {rank}");
        let line = text.lines().find(|line| line.starts_with(&name)).unwrap();
        let boxes = line[name.len()..]
            .split(['·', ' ', '='])
            .filter(|part| !part.is_empty());
        // Forward boxes of the narrowest scale touch the next box.
        let read: Vec<String> = boxes
            .flat_map(|part| part.split_inclusive(['a', 'b']))
            .map(str::to_owned)
            .collect();
        let expected: Vec<String> = timeline
            .spans(rank)
            .iter()
            .map(|span| {
                let action = span.action;
                let chunk = if action.stage() < 4 { 'a' } else { 'b' };
                format!("{}{}{chunk}", action.pass().letter(), action.micro_batch())
            })
            .collect();
        assert_eq!(read, expected);
    }
}

#[test]
fn no_line_is_wider_than_the_page() {
    for width in [40, 57, 80, 133] {
        for (kind, chunks) in [
            (ScheduleKind::Interleaved1F1B, 2),
            (ScheduleKind::ZeroBubbleH1, 1),
        ] {
            for micro_batches in [1, 8, 13, 40] {
                let text = timeline(kind, micro_batches, chunks).to_text(width);
                // The headline is not broken.
                let widest = text.lines().skip(1).map(|line| line.chars().count()).max();
                assert!(widest <= Some(width), "{width} columns:\n{text}");
            }
        }
    }
}

#[test]
fn a_drawing_is_whole_and_tells_what_it_shows() {
    let svg = timeline(ScheduleKind::ZeroBubbleH1, 12, 1).to_svg();
    for (open, close) in [
        ("<svg ", "</svg>"),
        ("<g>", "</g>"),
        ("<title", "</title>"),
        ("<text", "</text>"),
    ] {
        assert_eq!(
            svg.matches(open).count(),
            svg.matches(close).count(),
            "{open}"
        );
    }
    assert_eq!(svg.matches("<g>").count(), 4 * 12 * 3);
    assert!(svg.contains(r#"role="img""#) && svg.contains("prefers-color-scheme:dark"));
    assert!(svg.contains("<title id=\"title\">zb-h1: 4 ranks, 12 micro-batches"));
    assert!(svg.contains("<title>backward for weights of micro-batch 11 in stage 3, "));
    assert!(svg.contains(">11</text>"));
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
}
