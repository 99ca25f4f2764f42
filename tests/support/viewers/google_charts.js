// Answers for Google Charts, which the plugin's page would load from the network: every chart becomes a table of its
// data, and is listed in window.drawnCharts.
(() => {
  window.drawnCharts = [];

  class DataTable {
    columns = [];
    rows = [];
    addColumn(type, label) { this.columns.push(typeof type === 'object' ? type : {type, label}); }
    addRow(row) { this.rows.push(row); }
    addRows(rows) { this.rows.push(...rows); }
    setProperty() {}
    getValue(row, column) { return this.rows[row][column]; }
    getNumberOfRows() { return this.rows.length; }
    getNumberOfColumns() { return this.columns.length; }
  }

  const cell = (value) => {
    const shown = value && value.f !== undefined ? value.f : value;
    const element = document.createElement('td');
    element.textContent = typeof shown === 'number' ? String(Math.round(shown * 100) / 100) : String(shown ?? '');
    return element;
  };

  const line = (cells) => {
    const row = document.createElement('tr');
    row.append(...cells);
    return row;
  };

  const chart = (kind) => class {
    constructor(element) { this.element = element; }
    draw(data, options = {}) {
      const shown = data.columns.flatMap((column, at) => (column.role === 'tooltip' ? [] : [at]));
      const labels = shown.map((at) => data.columns[at].label || data.columns[at].id || '');
      window.drawnCharts.push({kind, title: options.title || '', labels, rows: data.rows.map((r) => shown.map((at) => r[at]))});
      const table = document.createElement('table');
      table.style.cssText = 'font: 12px sans-serif; border-spacing: 8px 2px';
      table.append(line(labels.map(cell)), ...data.rows.slice(0, 15).map((row) => line(shown.map((at) => cell(row[at])))));
      this.element.replaceChildren(table);
    }
    clearChart() { this.element.replaceChildren(); }
    getSelection() { return []; }
    setSelection() {}
    getChartLayoutInterface() {
      return {getChartAreaBoundingBox: () => ({left: 0, top: 0, width: 1, height: 1}), getXLocation: () => 0, getHAxisValue: () => 0};
    }
  };

  const kinds = ['ColumnChart', 'ComboChart', 'LineChart', 'PieChart', 'SteppedAreaChart', 'Table', 'Timeline'];
  window.google = {
    charts: {load: () => Promise.resolve(), setOnLoadCallback: (callback) => setTimeout(callback, 0)},
    visualization: {
      DataTable,
      arrayToDataTable: ([head, ...rows]) => {
        const table = new DataTable();
        head.forEach((column) => table.addColumn(typeof column === 'object' ? column : {label: column}));
        table.addRows(rows);
        return table;
      },
      events: {addListener: () => ({}), removeListener: () => {}},
      ...Object.fromEntries(kinds.map((kind) => [kind, chart(kind)])),
    },
  };
})();
