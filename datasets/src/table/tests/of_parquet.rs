//! Tables of Parquet.

use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::*;

const SCHEMA: &str = "message t { optional double x; required binary kind (UTF8); required boolean new; \
                      required int64 y; }";

/// The rows of [`as_csv`], in groups of 16.
fn as_parquet(compression: Compression, rows: usize) -> Vec<u8> {
    let properties = WriterProperties::builder().set_compression(compression);
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let mut bytes = Vec::new();
    let mut file =
        SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties.build())).unwrap();
    for first in (0..rows).step_by(16) {
        let group_rows = first..rows.min(first + 16);
        let mut group = file.next_row_group().unwrap();
        let there = |row: &usize| row % 7 != 3;
        let x: Vec<f64> = group_rows
            .clone()
            .filter(there)
            .map(|row| row as f64 / 4.0)
            .collect();
        let levels: Vec<i16> = group_rows
            .clone()
            .map(|row| i16::from(there(&row)))
            .collect();
        let mut column = group.next_column().unwrap().unwrap();
        column
            .typed::<DoubleType>()
            .write_batch(&x, Some(&levels), None)
            .unwrap();
        column.close().unwrap();
        let kinds: Vec<ByteArray> = group_rows
            .clone()
            .map(|row| ["a", "b"][row % 2].into())
            .collect();
        let mut column = group.next_column().unwrap().unwrap();
        column
            .typed::<ByteArrayType>()
            .write_batch(&kinds, None, None)
            .unwrap();
        column.close().unwrap();
        let new: Vec<bool> = group_rows.clone().map(|row| row % 3 == 0).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column
            .typed::<BoolType>()
            .write_batch(&new, None, None)
            .unwrap();
        column.close().unwrap();
        let y: Vec<i64> = group_rows.map(|row| 2 * row as i64).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column
            .typed::<Int64Type>()
            .write_batch(&y, None, None)
            .unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    file.close().unwrap();
    bytes
}

fn as_csv(rows: usize) -> String {
    let mut text = "x,kind,new,y\n".to_owned();
    for row in 0..rows {
        let x = match row % 7 == 3 {
            true => String::new(),
            false => (row as f64 / 4.0).to_string(),
        };
        writeln!(
            text,
            "{x},{},{},{}",
            ["a", "b"][row % 2],
            row % 3 == 0,
            2 * row
        )
        .unwrap();
    }
    text
}

fn impute(request: &mut TableRequest) {
    request.missing = Missing::Impute;
}

#[test]
fn the_rows_are_those_of_the_same_table_as_csv() {
    let csv = load(as_csv(50), impute).unwrap();
    for compression in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::ZSTD(parquet::basic::ZstdLevel::default()),
    ] {
        let loaded = load(as_parquet(compression, 50), impute).unwrap();
        assert_eq!(loaded.schema, csv.schema);
        assert_eq!((loaded.train.len(), loaded.test.len()), (45, 5));
        for row in 0..45 {
            let [ours, theirs] = [&loaded, &csv].map(|table| table.train.row(row));
            assert_eq!(
                (ours.features, ours.target),
                (theirs.features, theirs.target)
            );
        }
    }
}

#[test]
fn missing_values_and_columns_that_are_none_are_refused_by_name() {
    let text = refused(as_parquet(Compression::SNAPPY, 50));
    assert!(text.contains("t.csv, row 4, column `x`"), "{text}");
    let absent = load(as_parquet(Compression::SNAPPY, 50), |request| {
        request.target = "z".to_owned();
    });
    let text = absent.unwrap_err().to_string();
    text.assert_contains(["there is no column `z`, but x, kind, new, y"]);
    let nested = "message t { required int64 y; repeated int64 xs; }";
    let schema = Arc::new(parse_message_type(nested).unwrap());
    let mut bytes = Vec::new();
    let file = SerializedFileWriter::new(&mut bytes, schema, Arc::default()).unwrap();
    file.close().unwrap();
    let text = refused(bytes);
    text.assert_contains(["column `xs`: its cells have several values"]);
}

#[test]
fn damage_is_an_error_that_names_the_file() {
    let whole = as_parquet(Compression::SNAPPY, 50);
    for end in (0..whole.len()).step_by(31) {
        let cut = [b"PAR1", &whole[4.min(end)..end]].concat();
        let text = refused(cut);
        assert!(text.contains("t.csv"), "{text}");
    }
    for place in (4..whole.len()).step_by(3) {
        for change in [0x01, 0x80, 0xff] {
            let mut damaged = whole.clone();
            damaged[place] ^= change;
            // A changed number is another number; all else is an error that names the file.
            if let Err(error) = load(damaged, impute) {
                assert!(error.to_string().contains("t.csv"), "{error}");
            }
        }
    }
}
