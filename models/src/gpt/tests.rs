//! Tests of `gpt`.

use super::*;

#[test]
fn what_cannot_be_built_is_refused() {
    let refused = |config: GptConfig| config.check().unwrap_err().to_string();
    let config = GptConfig::new(5);
    assert!(refused(GptConfig::new(0)).contains("vocabulary"));
    assert!(refused(config.clone().with_context(0)).contains("context"));
    assert!(refused(config.clone().with_heads(5)).contains("5 heads"));
    assert!(refused(config.clone().with_dropout(1.0)).contains("dropout"));
    let odd = config.with_width(12).with_positions(Positions::Rotary);
    assert!(refused(odd).contains("must be even"));
}
