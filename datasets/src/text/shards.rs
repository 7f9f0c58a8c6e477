//! Windows of a text that is in files of tokens.

use std::path::Path;

use super::{LoadedText, TextDataset, TextRequest, Tokenizer, TokenizerKind};
use crate::error::{damaged, unusable};
use crate::token_shards::MadeBy;
use crate::{DatasetDescription, DatasetError, TokenFiles, TokenShards};

/// The windows of the files of tokens at `path`.
pub(super) fn load(path: &Path, request: &TextRequest) -> Result<LoadedText, DatasetError> {
    let files = TokenFiles::open(path, request.format)?;
    let (kind, tokenizer) = tokenizer_of(&files.train, path, request)?;
    let named = tokenizer.as_ref().map(Tokenizer::vocabulary);
    let vocabulary = match (files.train.vocabulary(), named.or(request.vocabulary)) {
        (Some(own), Some(named)) if own != named && tokenizer.is_some() => {
            let problem = format!("it is {own}, and the tokenizer {kind} has {named} tokens");
            return Err(damaged(path, "vocabulary", problem));
        }
        (Some(vocabulary), _) | (None, Some(vocabulary)) => vocabulary,
        (None, None) => {
            let problem = "the files do not contain it: name their tokenizer with --tokenizer, or the number of its tokens \
                           with --set gpt.vocabulary=50257";
            return Err(damaged(path, "vocabulary", problem));
        }
    };
    let record = files.record();
    let reason = format!("{record}, as those of {}", files.train.format());
    let context = request.context;
    let train = files.train.with_vocabulary(vocabulary);
    let (count, held_out) = (train.tokens(), files.held_out);
    let [train, test] = match (held_out, context) {
        (_, 0) => return Err(damaged(path, "tokens", "a window needs a token to predict")),
        (Some(held_out), _) => [train, held_out.with_vocabulary(vocabulary)]
            .map(|shards| TextDataset::of_shards(shards, context)),
        // As of a text.
        (None, _) => request.split(TextDataset::of_shards(train, context), count / 10 * 9),
    };
    for (part, of) in [(&train, "to train on"), (&test, "to test by")] {
        if part.is_empty() {
            let problem = format!("there is no window of {} tokens {of}", context + 1);
            return Err(damaged(path, "tokens", problem));
        }
    }
    let [train, test] = request.limited([train, test])?;
    let description = DatasetDescription {
        name: "tokens".to_owned(),
        origin: path.display().to_string(),
        reason,
        train: request.described(&train),
        test: test.len(),
        unit: format!("windows of {context} tokens"),
    };
    Ok(LoadedText {
        train,
        test,
        tokenizer,
        kind,
        vocabulary,
        template: None,
        shards: Some(record),
        description,
    })
}

/// The tokenizer of files of tokens: the one that was named, else that of the files' folder, if there is one.
fn tokenizer_of(
    shards: &TokenShards,
    path: &Path,
    request: &TextRequest,
) -> Result<(TokenizerKind, Option<Tokenizer>), DatasetError> {
    let folder = match path.is_dir() {
        true => path,
        false => path.parent().unwrap_or(path),
    };
    let beside = ["tokenizer.json", "vocab.json"].map(|name| folder.join(name).is_file());
    let kind = match (&request.tokenizer, shards.made_by()) {
        (TokenizerKind::Char, MadeBy::Bytes) => TokenizerKind::Byte,
        (TokenizerKind::Char, _) if beside.contains(&true) => {
            TokenizerKind::File(folder.to_owned())
        }
        // Files of tokens have none of characters: nobody has named one.
        (TokenizerKind::Char, _) => return Ok((TokenizerKind::Char, None)),
        (named, _) => named.clone(),
    };
    let tokenizer = match &kind {
        TokenizerKind::File(path) => Tokenizer::from_file(path)?,
        _ => Tokenizer::of_bytes(),
    };
    let (expected, found) = (shards.made_by(), tokenizer.made_by());
    if *expected != MadeBy::Unknown && *expected != found {
        let problem = format!(" was made by {expected}, and {kind} is {found}");
        return Err(unusable(&shards.first_file(), problem));
    }
    Ok((kind, Some(tokenizer)))
}
